"""The table of all trials: its address holds what it shows, and what is chosen is drawn."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import eventually
from playwright.sync_api import expect

from browser.conftest import log_in
from det_keras.home import Home

# More than one page of the table.
WIDTHS = 120
SEARCH = """\
name: {name}
entrypoint: python3 train.py
searcher: {{name: grid, metric: val_loss, max_concurrent_trials: 0}}
hyperparameters:
  width: {{type: int, minval: 1, maxval: {count}, count: {count}}}
  optimizer: {optimizer}
labels: [{name}]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master with two searches; the trial of width w reported w / 1000 as its loss."""
    master = RealMaster(Home(tmp_path_factory.mktemp("table")).create())
    for name, count, optimizer in (("wide", WIDTHS, "adam"), ("narrow", 4, "sgd")):
        config = SEARCH.format(name=name, count=count, optimizer=optimizer)
        number = master.client.create(config, activate=False)
        for trial in master.client.trials(number):
            for step in (1, 2, 3):
                metrics = {"val_loss": trial["hparams"]["width"] / 1000 * (4 - step)}
                master.client.report(trial["id"], "validation", step, metrics, run_id=0)
    yield master
    master.close()


def cells(page, column: int) -> list[str]:
    """Return the texts of a column, from top to bottom."""
    return page.locator(f"#all-trials tbody td:nth-child({column + 2})").all_inner_texts()


def open_table(page, address: str, found: int) -> None:
    page.goto(address)
    expect(page.locator("#all-trials")).to_have_attribute("data-found", str(found))


@pytest.mark.main_path
def test_address_holds_filter_order_columns_and_group(page):
    open_table(page, "/trials?q=val_loss<.004 optimizer=sgd&sort=-val_loss&columns=width,val_loss", 3)
    assert cells(page, 0) == ["3", "2", "1"]
    assert cells(page, 1) == ["0.003", "0.002", "0.001"]
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("val_loss<.004 optimizer=sgd")
    expect(page.get_by_role("columnheader", name="val_loss")).to_have_attribute("aria-sort", "descending")
    open_table(page, "/trials?group=optimizer&columns=width", 2)
    assert page.locator("#all-trials tbody tr").all_inner_texts() == [
        "adam\t120\t60.5\t34.64",
        "sgd\t4\t2.5\t1.118",
    ]


def test_what_one_does_is_in_the_address(page):
    open_table(page, "/trials?columns=id,width", WIDTHS + 4)
    page.get_by_role("searchbox", name="Filter").fill("experiment:wide")
    expect(page.locator("#all-trials")).to_have_attribute("data-found", str(WIDTHS))
    page.get_by_role("button", name="width", exact=True).click()
    expect(page.get_by_role("columnheader", name="width")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text(f"101 to {WIDTHS} of {WIDTHS} trials")).to_be_visible()
    assert cells(page, 1) == [str(width) for width in range(101, WIDTHS + 1)]
    shown = cells(page, 0)
    page.reload()
    expect(page.locator("#all-trials tbody tr")).to_have_count(WIDTHS - 100)
    assert cells(page, 0) == shown


def test_unknown_name_is_refused_beside_the_rows(page):
    open_table(page, "/trials?columns=width", WIDTHS + 4)
    with page.watch.forgiving("400"):
        page.get_by_role("searchbox", name="Filter").fill("widht>3")
        expect(
            page.get_by_role("alert").filter(has_text=re.compile("Did you mean .*`width`"))
        ).to_be_visible()
    # What was found before is still there.
    expect(page.locator("#all-trials tbody tr")).to_have_count(100)
    page.get_by_role("searchbox", name="Filter").fill("width>3")
    expect(page.locator("[data-refused]")).to_be_hidden()


def test_chosen_trials_are_drawn_in_their_colours(page):
    open_table(page, "/trials?q=optimizer=sgd&sort=width&columns=id,width", 4)
    for box in page.get_by_role("checkbox", name=re.compile(r"Choose trial \d")).all()[:2]:
        box.check()
    page.get_by_role("button", name="Draw 2").click()
    canvas = page.locator("[data-drawn] canvas").first
    expect(canvas).to_be_visible()
    swatches = page.locator("#all-trials tbody .swatch")
    colours = [
        swatches.nth(place).evaluate("(one) => getComputedStyle(one).backgroundColor") for place in range(4)
    ]
    assert len({*colours[:2]}) == 2
    assert colours[2] == colours[3] == "rgba(0, 0, 0, 0)"
    for colour in colours[:2]:
        eventually(functools.partial(page.evaluate, _HAS_COLOUR, colour))
    expect(page.get_by_role("link", name="Compare 2")).to_have_attribute(
        "href", re.compile(r"trial=\d+&trial=\d+")
    )
    # A sent address shows the same.
    page.reload()
    expect(page.locator("[data-drawn] canvas").first).to_be_visible()
    page.get_by_role("button", name="Choose none").click()
    expect(page.locator("[data-drawn]")).to_be_hidden()


# Whether the first chart has lines of a colour.
_HAS_COLOUR = """(colour) => {
  const canvas = document.querySelector("[data-drawn] canvas");
  if (canvas === null || canvas.width === 0) return false;
  const draft = document.createElement("canvas").getContext("2d");
  draft.fillStyle = colour;
  draft.fillRect(0, 0, 1, 1);
  const wanted = draft.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 60 && [0, 1, 2].every((part) => Math.abs(data[at + part] - wanted[part]) < 12)) count += 1;
  }
  return count > 20;
}"""


def test_columns_are_found_added_moved_and_kept_in_view(new_page, site):
    page = new_page(viewport={"width": 700, "height": 800})
    log_in(page, site)
    names = "id,name,state,best,optimizer,val_loss,batches,duration,started,owner"
    open_table(page, f"/trials?columns={names}", WIDTHS + 4)
    menu = page.locator("#all-trials details.chooser")
    menu.locator("summary").click()
    menu.get_by_role("searchbox").fill("wid")
    menu.get_by_role("button", name="Add width").click()
    expect(page.get_by_role("columnheader", name="width")).to_be_visible()
    menu.get_by_role("button", name="Keep width in view").click()
    expect(page.locator("#all-trials thead th").nth(1)).to_have_text("width")
    menu.get_by_role("button", name="Move name to the left").click()
    expect(page.locator("#all-trials thead th").nth(2)).to_have_text("Name")
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    head = page.get_by_role("columnheader", name="width")
    before = head.bounding_box()["x"]
    page.locator("#all-trials .scroll").evaluate("(one) => { one.scrollLeft = 400; }")
    left = page.locator("#all-trials .scroll").bounding_box()["x"]
    assert left - 2 <= head.bounding_box()["x"] <= before
    menu.locator("summary").click()
    page.get_by_role("heading", name="Trials").click()
    expect(menu).not_to_have_attribute("open", "")


def test_file_has_what_is_shown(page, tmp_path):
    open_table(page, "/trials?q=optimizer=sgd&sort=-width&columns=width,val_loss", 4)
    with page.expect_download() as found:
        page.get_by_role("link", name="CSV").click()
    found.value.save_as(tmp_path / "trials.csv")
    rows = list(csv.reader((tmp_path / "trials.csv").open()))
    assert [row[0] for row in rows] == ["width", *cells(page, 0)]
    assert [row[1] for row in rows[1:]] == cells(page, 1)


def test_page_fits_a_phone(new_page, site):
    page = new_page(viewport={"width": 390, "height": 800})
    log_in(page, site)
    page.goto("/trials?chosen=121,122&draw=true")
    page.locator("[data-drawn] .card").first.scroll_into_view_if_needed()
    expect(page.locator("[data-drawn] canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_new_trial_appears_by_itself(page, site):
    open_table(page, "/trials?q=label:late", 0)
    config = SEARCH.format(name="late", count=2, optimizer="adam")
    number = site.client.create(config, activate=False)
    rows = page.locator("#all-trials tbody tr")
    expect(rows).to_have_count(2)
    # A change leaves the focus where it is.
    page.get_by_role("heading", name="Trials").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    site.client.call("PATCH", f"/api/v1/experiments/{number}", {"name": "later"})
    expect(rows.first).to_contain_text("later")
    expect(rows.nth(1)).to_be_focused()


def test_page_is_saved_under_a_name_and_opened_again(page):
    open_table(page, "/trials?q=optimizer=sgd&sort=-width&columns=width", 4)
    menu = page.locator("details.views")
    menu.locator("summary").click()
    expect(menu.get_by_text("No view is saved yet.")).to_be_visible()
    menu.get_by_label("Save this page as").fill("narrow ones")
    menu.get_by_label("for all users").check()
    menu.get_by_role("button", name="Save").click()
    expect(menu.get_by_role("link", name="narrow ones")).to_be_visible()
    page.goto("/jobs")
    menu.locator("summary").click()
    menu.get_by_role("link", name="narrow ones").click()
    expect(page.locator("#all-trials")).to_have_attribute("data-found", "4")
    assert cells(page, 0) == ["4", "3", "2", "1"]
    menu.locator("summary").click()
    menu.get_by_role("button", name="Delete the view narrow ones").click()
    expect(menu.get_by_text("No view is saved yet.")).to_be_visible()


def test_keys_find_walk_tick_and_compare(page):
    open_table(page, "/trials?q=optimizer=sgd&sort=width&columns=id,width", 4)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter")).to_be_focused()
    # In a field they are letters.
    page.keyboard.press("End")
    page.keyboard.type(" width<3")
    expect(page.locator("#all-trials")).to_have_attribute("data-found", "2")
    page.get_by_role("heading", name="Trials").click()
    for key in "jxjx":
        page.keyboard.press(key)
    boxes = page.get_by_role("checkbox", name=re.compile(r"Choose trial \d"))
    expect(boxes.nth(0)).to_be_checked()
    expect(boxes.nth(1)).to_be_checked()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("k")
    expect(page.locator("#all-trials tbody tr").first).to_be_focused()
    page.keyboard.press("c")
    page.wait_for_url(re.compile(r"/compare\?trial=\d+&trial=\d+"))
