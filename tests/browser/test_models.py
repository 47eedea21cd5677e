"""The pages of the model registry: a checkpoint is registered, versions are side by side, aliases move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import eventually, store_checkpoint
from playwright.sync_api import expect

from browser.conftest import log_in
from browser.watch import accessibility_faults
from det_keras.home import Home

EVIL = '<b onclick="x">"\'& digits'


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master of its own: its models are counted."""
    master = RealMaster(Home(tmp_path_factory.mktemp("models")).create())
    yield master
    master.close()


@pytest.fixture(scope="module")
def checkpoints(site):
    """Two checkpoints of a trial, with their validations."""
    number = site.client.create(activate=False)
    (trial,) = eventually(lambda: site.client.trials(number))
    made = []
    for steps in (10, 20):
        site.client.report(
            trial["id"], "validation", steps, {"val_loss": 1 / steps, "val_accuracy": 0.5}, run_id=0
        )
        made.append(store_checkpoint(site.home, site.client, trial, steps, keras="3.9.9"))
    return made


def enter(page, text):
    page.locator("#ask-input").fill(text)
    page.locator("#ask-yes").click()


def follow(page, name):
    """Open the page of a model from the list."""
    page.get_by_role("link", name=name).click()
    page.wait_for_url("**/models/*")
    # Its buttons work once its scripts have run.
    page.wait_for_load_state("load")


def test_checkpoint_becomes_a_version_and_the_page_shows_where_it_is_from(page, checkpoints):
    page.goto("/models")
    expect(page.locator("#models")).to_contain_text("context.register_model")
    for uuid in checkpoints:
        page.goto(f"/checkpoints/{uuid}")
        page.get_by_role("button", name="Register").click()
        enter(page, "mnist")
        expect(page.locator("#facts")).to_contain_text("mnist")
    page.get_by_role("link", name="mnist 2").click()
    versions = page.locator("#versions tbody tr")
    expect(versions).to_have_count(2)
    expect(versions.first).to_contain_text("0.05")
    expect(versions.first).to_contain_text("3.9.9")
    heads = page.locator("#versions thead th").all_inner_texts()
    assert heads[2:4] == ["val_loss", "val_accuracy"]
    expect(page.locator("#loading")).to_contain_text("load_checkpoint_model(model='mnist')")


def test_alias_moves_between_versions(page, site, checkpoints):
    site.client.post("/api/v1/models", {"name": "moved"})
    for uuid in checkpoints:
        site.client.post("/api/v1/models/moved/versions", {"checkpointUuid": uuid})
    page.goto("/models/moved")
    new, old = page.locator("#versions tbody tr").all()
    for row, other in ((old, new), (new, old)):
        row.get_by_role("button", name="Alias", exact=True).click()
        enter(page, "champion")
        expect(row).to_contain_text("champion")
        expect(other).not_to_contain_text("champion")
    page.reload()
    expect(page.locator("#loading")).to_contain_text("moved@champion")
    # What others do is shown as well.
    site.client.call("PUT", "/api/v1/models/moved/aliases/candidate", {"version": 1})
    expect(page.locator("#versions tbody tr").last).to_contain_text("candidate")
    page.get_by_role("button", name="Remove the alias champion").click()
    expect(page.locator("#versions")).not_to_contain_text("champion")
    page.locator("#versions tbody tr").last.get_by_role("button", name="Alias", exact=True).click()
    with page.watch.forgiving("400"):
        enter(page, "v3")
        expect(page.locator("#said")).to_contain_text("may not look like a version")


def test_model_is_made_described_archived_and_deleted(page, site):
    page.goto("/models")
    page.get_by_role("button", name="New model").click()
    enter(page, EVIL)
    follow(page, EVIL)
    page.get_by_role("button", name="Edit the description").click()
    page.locator("textarea.editor").fill(EVIL)
    page.locator("form.editing button[type=submit]").click()
    expect(page.locator("#description")).to_have_text(EVIL)
    page.get_by_role("button", name="Archive").click()
    expect(page.locator("#heading h1")).to_contain_text("archived")
    page.goto("/models")
    expect(page.get_by_role("link", name=EVIL)).to_have_count(0)
    page.get_by_role("link", name="Archived ones").click()
    follow(page, EVIL)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator("#ask-yes").click()
    page.wait_for_url("**/models")
    assert EVIL not in [one["name"] for one in site.client.get("/api/v1/models")["models"]]


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_the_pages(new_page, site, checkpoints, width, scheme):
    page = new_page(site, viewport={"width": width, "height": 900}, color_scheme=scheme)
    log_in(page, site)
    name = f"shown {width} {scheme}"
    site.client.post("/api/v1/models", {"name": name, "labels": ["vision"], "notes": "# Notes\n\n* one"})
    fields = {"aliases": ["champion"], "comment": "the first", "notes": "of it"}
    site.client.post(f"/api/v1/models/{name}/versions", {"checkpointUuid": checkpoints[0], **fields})
    for address in ("/models", f"/models/{name}"):
        page.goto(address)
        expect(
            page.locator("td", has_text=name if address == "/models" else "the first").first
        ).to_be_visible()
        assert accessibility_faults(page) == []
        overflow = page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0
