"""Tables: searched, sorted, chosen, changed, and long."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import SINGLE, eventually
from playwright.sync_api import expect

from browser.conftest import log_in
from det_keras.home import Home

COUNT = 130
# Rows of a page.
PAGE = 100


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master of its own: lists of other tests stay short."""
    master = RealMaster(Home(tmp_path_factory.mktemp("list")).create())
    for number in range(COUNT):
        labels = "[odd]" if number % 2 else "[even]"
        master.client.create(f"{SINGLE}name: run {number}\nlabels: {labels}\n", activate=False)
    yield master
    master.close()


@pytest.fixture
def rows(page):
    """The rows of the first page of the list."""
    page.goto("/experiments")
    found = page.locator("#experiments tbody tr")
    expect(found).to_have_count(PAGE)
    return found


def search(page, words: str, found: int) -> None:
    """Enter a filter and wait for its rows."""
    page.get_by_role("searchbox", name="Filter").fill(words)
    expect(page.locator("#experiments")).to_have_attribute("data-found", str(found))
    expect(page.locator("#experiments tbody tr")).to_have_count(min(found, PAGE))


def keys(page):
    """Return the numbers of the experiments that are shown, from top to bottom."""
    return page.evaluate(
        "() => [...document.querySelectorAll('#experiments tbody tr[data-key]')].map((row) => Number(row.dataset.key))"
    )


@pytest.mark.main_path
def test_filter_finds_ids_names_and_labels_as_one_types(page, rows):
    assert keys(page) == list(range(COUNT, COUNT - PAGE, -1))
    for words, found in (
        ("77 run", {77, 78}),
        ('name:"run 77"', {78}),
        ("odd run label:odd 128", {128}),
        ("id<=3", {1, 2, 3}),
        ("even 88", {89}),
        ("88 even", {89}),
    ):
        page.get_by_role("searchbox", name="Filter").fill(words)
        eventually(lambda wanted=found: set(keys(page)) == wanted)
    search(page, "EVEN", COUNT // 2)
    assert keys(page) == list(range(COUNT - 1, 0, -2))
    search(page, "nobody", 0)
    expect(page.get_by_text(f"No experiment matches, of {COUNT}.")).to_be_visible()
    search(page, "state:paused", COUNT)


def test_a_click_sorts_and_another_one_turns_it_round(page, rows):
    head = page.get_by_role("columnheader", name="Name").get_by_role("button")
    head.click()
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    # As people count: 2 before 10.
    expect(rows.first).to_have_attribute("data-key", "1")
    assert keys(page) == list(range(1, PAGE + 1))
    head.click()
    expect(rows.first).to_have_attribute("data-key", str(COUNT))
    assert keys(page) == list(range(COUNT, COUNT - PAGE, -1))
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(COUNT - PAGE)
    assert keys(page) == list(range(COUNT - PAGE, 0, -1))


def test_group_tells_how_many_there_are_of_each(page, rows):
    page.get_by_label("Group by").select_option("label")
    expect(rows).to_have_count(2)
    cells = [row.split("\t")[:2] for row in rows.all_inner_texts()]
    assert cells == [["even", str(COUNT // 2)], ["odd", str(COUNT // 2)]]


@pytest.mark.main_path
def test_back_and_a_sent_link_restore_the_table(page, rows, new_page, site):
    search(page, "odd", COUNT // 2)
    page.get_by_role("columnheader", name="Name").get_by_role("button").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("button", name="Remove owner").click()
    expect(page.get_by_role("columnheader", name="Owner")).to_have_count(0)
    expect(rows.first).to_have_attribute("data-key", "2")
    shown, address = keys(page), page.url
    page.goto("/cluster")
    page.go_back()
    expect(page.locator("#experiments tbody tr")).to_have_count(COUNT // 2)
    other = new_page()
    log_in(other, site)
    other.goto(address)
    expect(other.locator("#experiments tbody tr")).to_have_count(COUNT // 2)
    for restored in (page, other):
        assert keys(restored) == shown
        expect(restored.get_by_role("columnheader", name="Owner")).to_have_count(0)


def test_shift_chooses_a_range_that_is_saved_as_csv(page, rows, tmp_path):
    page.get_by_label("Choose experiment 50", exact=True).click()
    page.get_by_label("Choose experiment 54", exact=True).click(modifiers=["Shift"])
    expect(page.get_by_role("link", name="Compare 5")).to_be_visible()
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV 5").click()
    started.value.save_as(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        table = list(csv.reader(file))
    assert table[0][:3] == ["id", "name", "state"]
    assert [row[0] for row in table[1:]] == ["54", "53", "52", "51", "50"]


def test_all_that_are_found_are_chosen_with_two_clicks(page, rows, site):
    search(page, "name:run", COUNT)
    page.get_by_label("Choose all rows of this page").check()
    page.get_by_role("button", name=f"Choose all {COUNT} found").click()
    expect(page.get_by_role("link", name=f"CSV {COUNT}")).to_be_visible()
    expect(page.get_by_role("button", name=f"Activate {COUNT}")).to_be_visible()
    page.get_by_role("button", name="Choose none").click()
    expect(page.get_by_role("button", name="Activate")).to_be_hidden()


def test_actions_on_many_rows_change_all_of_them(page, rows, site):
    for number in (60, 62):
        # Only what has ended is archived.
        site.client.move(number, "kill")
        page.get_by_label(f"Choose experiment {number}", exact=True).check()
    page.get_by_role("button", name="Label 2").click()
    page.get_by_label("Label", exact=True).fill("chosen one")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.locator("#experiments tr[data-key='60']")).to_contain_text("chosen one")
    page.get_by_role("button", name="Archive 2").click()
    expect(page.locator("#experiments")).to_have_attribute("data-found", str(COUNT - 2))
    page.goto("/experiments?archived=true")
    expect(page.locator("#experiments tbody tr")).to_have_count(2)
    for number in (60, 62):
        page.get_by_label(f"Choose experiment {number}", exact=True).check()
    page.get_by_role("button", name="Unarchive 2").click()
    expect(page.locator("#experiments tbody tr")).to_have_count(0)
    assert "chosen one" in site.client.experiment(60)["labels"]


def test_refused_action_says_why(page, rows, site):
    site.client.move(70, "kill")
    page.get_by_label("Choose experiment 70", exact=True).check()
    page.get_by_role("button", name="Delete 1").click()
    # Somebody else is faster than the answer to the question.
    site.client.post("/api/v1/experiments/continue", {"id": 70})
    site.client.move(70, "pause")
    with page.watch.forgiving("400"):
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator("#said")).to_contain_text("0 of 1 done. 70:")
    assert site.client.experiment(70)["state"] == "STATE_PAUSED"


def test_actions_are_those_that_the_chosen_rows_allow(page, rows, site):
    site.client.move(80, "kill")
    buttons = page.locator("#experiments [data-bulk]:visible")
    expect(buttons).to_have_count(0)
    page.get_by_label("Choose experiment 80", exact=True).check()
    page.get_by_label("Choose experiment 81", exact=True).check()
    expect(buttons).to_have_text(["Activate 1", "Kill 1", "Label 2", "Move 2", "Archive 1", "Delete 1"])
    # What was chosen is there again after a look at another page.
    page.get_by_role("link", name="run 80", exact=True).click()
    page.wait_for_url("**/experiments/81")
    page.go_back()
    expect(page.get_by_label("Choose experiment 80", exact=True)).to_be_checked()
    expect(page.get_by_role("link", name="Compare 2")).to_be_visible()


def test_unknown_name_is_called_unknown_and_leads_to_all_trials(page, rows):
    # There is no such trial either.
    with page.watch.forgiving("400"):
        page.get_by_role("searchbox", name="Filter").fill("learning_rate<1e-2")
        expect(page.get_by_text("No experiment has a value named `learning_rate`.")).to_be_visible()
        page.get_by_role("link", name="Search all trials").click()
        expect(page.get_by_role("searchbox", name="Filter")).to_have_value("learning_rate<1e-2")
        expect(page.get_by_role("alert").filter(has_text="No trial has a value named")).to_be_visible()


def test_column_menu_has_a_search_and_closes_on_escape(page, rows):
    menu = page.locator("#experiments details.chooser")
    menu.locator("summary").click()
    menu.get_by_role("searchbox").fill("searcher")
    expect(menu.get_by_role("button", name="Add ")).to_have_text(["searcher"])
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")


def test_new_ones_come_on_top(page, rows, site):
    number = site.client.create(f"{SINGLE}name: the newest\n", activate=False)
    expect(rows.first).to_have_attribute("data-key", str(number))
    site.client.move(number, "kill")
    expect(page.locator(f"tr[data-key='{number}']")).to_contain_text("canceled")
    site.client.call("DELETE", f"/api/v1/experiments/{number}")
    expect(rows.first).to_have_attribute("data-key", str(COUNT))


def test_width_of_a_column_is_dragged_and_kept_in_the_address(page, rows):
    head = page.locator("#experiments th[data-key=name]")
    edge = head.locator(".edge")
    before, place = head.bounding_box()["width"], edge.bounding_box()
    page.mouse.move(place["x"] + 4, place["y"] + 10)
    page.mouse.down()
    page.mouse.move(place["x"] + 104, place["y"] + 10, steps=4)
    page.mouse.up()
    assert head.bounding_box()["width"] == pytest.approx(before + 100, abs=4)
    head.get_by_role("button").focus()
    page.keyboard.press("Shift+ArrowLeft")
    width = head.bounding_box()["width"]
    assert width == pytest.approx(before + 84, abs=4)
    page.reload()
    expect(rows).to_have_count(PAGE)
    assert head.bounding_box()["width"] == pytest.approx(width, abs=2)
    head.get_by_role("button").focus()
    page.keyboard.press("Shift+ArrowUp")
    assert head.bounding_box()["width"] == pytest.approx(before, abs=4)
    assert "widths" not in page.url


# The last one: it adds an experiment.
def test_list_fits_a_usual_screen(new_page, site):
    name = "resnet with cosine decay and label smoothing, second try"
    labels = "[vision, team-alpha, candidate-for-release]"
    config = SINGLE.replace("metric: loss", "metric: val_sparse_categorical_accuracy")
    text = "The learning rate of the first try was too high for the wide layers at the end."
    number = site.client.create(
        f"{config}name: {name}\nlabels: {labels}\ndescription: {text}\n", activate=False
    )
    page = new_page(viewport={"width": 1350, "height": 900})
    log_in(page, site)
    page.goto("/experiments")
    expect(page.locator(f"#experiments tr[data-key='{number}']")).to_be_visible()
    scroll = page.locator("#experiments .scroll")
    assert scroll.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
