"""Searches that are changed from their page while they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import eventually
from playwright.sync_api import expect

from det_keras.home import Home

SEARCH = """\
name: steered
entrypoint: python3 train.py
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  size: {type: categorical, vals: [16, 32, 64, 128]}
  act: {type: categorical, vals: [relu, "true", true]}
searcher: {name: random, metric: loss, max_trials: 40, max_concurrent_trials: 8, max_length: {epochs: 4}}
reproducibility: {experiment_seed: 3}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master of its own, with a paused search whose trials have reported."""
    master = RealMaster(Home(tmp_path_factory.mktemp("steering")).create())
    number = master.client.create(SEARCH, activate=False)
    for trial in master.client.trials(number):
        master.client.report(trial["id"], "validation", 1, {"loss": trial["hparams"]["lr"]}, run_id=0)
    yield master
    master.close()


@pytest.fixture
def search(page):
    """The page of the search, drawn."""
    page.goto("/experiments/1/search")
    expect(page.locator("[data-draw=parallel] .trial-line")).not_to_have_count(0)
    return page


def drag(page, axis: str, top: float, bottom: float) -> None:
    """Drag along an axis, between two fractions of its height from above."""
    grip = page.locator(f"[data-draw=parallel] [data-axis='{axis}']")
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + top * box["height"])
    page.mouse.down()
    page.mouse.move(x, box["y"] + bottom * box["height"], steps=4)
    page.mouse.up()


def test_trial_with_own_values_is_added(search, site):
    page, before = search, len(site.client.trials(1))
    page.get_by_text("Add a trial", exact=True).click()
    form = page.locator("#new-trial")
    form.get_by_label("lr").fill("0.5")
    form.get_by_label("size").select_option("64")
    # A text and a value that look the same are two choices.
    form.get_by_label("act").select_option(index=2)
    form.get_by_role("button", name="Add").click()
    expect(page.locator("#said")).to_contain_text("was added")
    added = site.client.trials(1)[-1]
    assert len(site.client.trials(1)) == before + 1
    assert added["hparams"] == {"lr": 0.5, "size": 64, "act": True}
    expect(page.locator(f"#trials tr[data-key='{added['id']}']")).to_be_visible()


@pytest.mark.main_path
def test_brushes_narrow_the_search(search, site):
    page = search
    button = page.get_by_role("button", name="Narrow to the chosen values")
    expect(button).to_be_disabled()
    drag(page, "lr", 0.3, 0.6)
    expect(button).to_be_enabled()
    drag(page, "size", 0.0, 0.4)
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("lr")
    dialog.get_by_role("button", name="Narrow").click()
    expect(page.locator("#narrowed")).to_contain_text("Further trials are drawn from")
    space = site.client.get("/api/v1/experiments/1/searcher/space")["hyperparameters"]
    assert -4 < space["lr"]["minval"] < space["lr"]["maxval"] < -1
    assert set(space["size"].get("vals", [space["size"].get("val")])) < {16, 32, 64, 128}


def test_trial_is_extended_and_stopped_on_its_page(page, site):
    # Those outside of the narrowed space were withdrawn.
    trial = next(one["id"] for one in site.client.trials(1) if one["endTime"] is None)
    page.goto(f"/trials/{trial}")
    page.get_by_role("button", name="Extend").click()
    page.get_by_label("Length in all, in epochs").fill("9")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    expect(page.locator("#said")).to_contain_text("Extend: done.")
    operation = site.client.get(f"/api/v1/trials/{trial}/searcher/operation")["op"]["validateAfter"]["length"]
    assert operation == "9"
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    eventually(lambda: site.client.get(f"/api/v1/trials/{trial}")["trial"]["state"] == "STATE_COMPLETED")
