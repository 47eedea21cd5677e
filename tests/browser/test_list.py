"""Tables: searched, sorted, chosen, changed, and long."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import SINGLE
from playwright.sync_api import expect
from sqlalchemy import create_engine, text

from browser.conftest import log_in
from det_keras.home import Home

COUNT = 130


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
    """The rows of the list."""
    page.goto("/experiments")
    found = page.locator("#experiments tbody tr")
    expect(found).to_have_count(COUNT)
    return found


def keys(page):
    """Return the numbers of the experiments that are shown, from top to bottom."""
    return page.evaluate(
        "() => [...document.querySelectorAll('#experiments tbody tr[data-key]')].map((row) => Number(row.dataset.key))"
    )


@pytest.mark.main_path
def test_search_finds_ids_names_and_labels_as_one_types(page, rows):
    assert keys(page) == list(range(COUNT, 0, -1))
    box = page.get_by_role("searchbox", name="Search")
    for words, found in (
        ("77 run", {77, 78}),
        ('name:"run 77"', {78}),
        ("EVEN", set(range(1, COUNT + 1, 2))),
        ("odd run label:odd 128", {128}),
        ("id<=3", {1, 2, 3}),
    ):
        box.fill(words)
        assert set(keys(page)) == found, words
    box.fill("nobody")
    expect(page.get_by_text("No experiment matches.")).to_be_visible()
    box.fill("")
    page.locator("#experiments [name=state]").select_option("paused")
    assert len(keys(page)) == COUNT


def test_order_of_words_does_not_matter(page, rows):
    box = page.get_by_role("searchbox", name="Search")
    for words in ("even 88", "88 even"):
        box.fill(words)
        assert keys(page) == [89]


def test_a_click_sorts_and_another_one_turns_it_round(page, rows):
    head = page.get_by_role("button", name="Name")
    head.click()
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    # As people count: 2 before 10.
    assert keys(page) == list(range(1, COUNT + 1))
    head.click()
    assert keys(page) == list(range(COUNT, 0, -1))


@pytest.mark.main_path
def test_back_and_a_sent_link_restore_the_table(page, rows, new_page, site):
    page.get_by_role("searchbox", name="Search").fill("odd")
    page.get_by_role("button", name="Name").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="Owner").uncheck()
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
    page.get_by_label("Compare experiment 10", exact=True).click()
    page.get_by_label("Compare experiment 14", exact=True).click(modifiers=["Shift"])
    expect(page.get_by_role("button", name="Compare 5")).to_be_enabled()
    with page.expect_download() as started:
        page.get_by_role("button", name="CSV").click()
    started.value.save_as(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        table = list(csv.reader(file))
    assert table[0][:3] == ["Id", "Name", "State"]
    assert [row[0] for row in table[1:]] == ["14", "13", "12", "11", "10"]


def test_no_cell_of_a_csv_is_a_formula_or_breaks_its_row(page, rows):
    cells = ["=1+1", "+cmd", "@sum", "-x", "-1.5e-3", "+2", -3, "a=b", 'a\rb "c"']
    script = "async (cells) => (await import('/static/downloads.js')).csv([cells]).text()"
    assert list(csv.reader([page.evaluate(script, cells)])) == [
        ["'=1+1", "'+cmd", "'@sum", "'-x", "-1.5e-3", "+2", "-3", "a=b", 'a\rb "c"']
    ]


def test_actions_on_many_rows_change_all_of_them(page, rows, site):
    for number in (20, 22):
        # Only what has ended is archived.
        site.client.move(number, "kill")
        page.get_by_label(f"Compare experiment {number}", exact=True).check()
    page.get_by_role("button", name="Label 2").click()
    page.get_by_label("Label", exact=True).fill("chosen one")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.locator("#experiments tr[data-key='20']")).to_contain_text("chosen one")
    page.get_by_role("button", name="Archive 2").click()
    expect(rows).to_have_count(COUNT - 2)
    page.goto("/experiments?archived=true")
    expect(page.locator("#experiments tbody tr")).to_have_count(2)
    for number in (20, 22):
        page.get_by_label(f"Compare experiment {number}", exact=True).check()
    page.get_by_role("button", name="Unarchive 2").click()
    expect(page.locator("#experiments tbody tr")).to_have_count(0)
    assert "chosen one" in site.client.experiment(20)["labels"]


def test_refused_action_says_why(page, rows, site):
    site.client.move(30, "kill")
    page.get_by_label("Compare experiment 30", exact=True).check()
    page.get_by_role("button", name="Delete 1").click()
    # Somebody else is faster than the answer to the question.
    site.client.post("/api/v1/experiments/continue", {"id": 30})
    site.client.move(30, "pause")
    with page.watch.forgiving("400"):
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator("#said")).to_contain_text("0 of 1 done. 30:")
    assert site.client.experiment(30)["state"] == "STATE_PAUSED"


def test_actions_are_those_that_the_chosen_rows_allow(page, rows, site):
    site.client.move(40, "kill")
    buttons = page.locator("#experiments [data-bulk]:visible")
    assert buttons.all_inner_texts() == ["CSV"]
    page.get_by_label("Compare experiment 40", exact=True).check()
    page.get_by_label("Compare experiment 41", exact=True).check()
    expect(buttons).to_have_text(
        ["Compare 2", "Activate 1", "Kill 1", "Label 2", "Archive 1", "Delete 1", "CSV 2"]
    )
    # What was chosen is there again after a look at another page.
    page.get_by_role("link", name="run 40", exact=True).click()
    page.wait_for_url("**/experiments/41")
    page.go_back()
    expect(page.get_by_label("Compare experiment 40", exact=True)).to_be_checked()
    expect(page.get_by_role("button", name="Compare 2")).to_be_visible()


def test_unknown_name_is_called_unknown_and_leads_to_all_trials(page, rows):
    page.get_by_role("searchbox", name="Search").fill("learning_rate<1e-2")
    expect(page.get_by_text("No experiment has a value named “learning_rate”.")).to_be_visible()
    # There is no such trial either.
    with page.watch.forgiving("400"):
        page.get_by_role("link", name="Search all trials").click()
        expect(page.get_by_role("searchbox", name="Filter")).to_have_value("learning_rate<1e-2")
        expect(page.get_by_role("alert").filter(has_text="No trial has a value named")).to_be_visible()


def test_column_menu_has_a_search_and_closes_on_escape(page, rows):
    menu = page.locator("#experiments details.chooser")
    menu.locator("summary").click()
    menu.get_by_role("searchbox").fill("searcher")
    expect(menu.locator("label:visible")).to_have_text(["Searcher"])
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")


def test_new_ones_come_on_top_and_older_ones_stay(page, rows, site):
    number = site.client.create(f"{SINGLE}name: the newest\n", activate=False)
    expect(rows).to_have_count(COUNT + 1)
    assert keys(page) == list(range(number, 0, -1))
    site.client.move(number, "kill")
    expect(page.locator(f"tr[data-key='{number}']")).to_contain_text("canceled")
    site.client.call("DELETE", f"/api/v1/experiments/{number}")
    expect(rows).to_have_count(COUNT)


def test_ten_thousand_rows_are_few_elements(page, rows, site):
    engine = create_engine(f"sqlite:///{site.home.database}")
    with engine.begin() as connection:
        row = dict(connection.execute(text("SELECT * FROM experiments WHERE id = 1")).mappings().one())
        copies = [
            {**row, "id": 1000 + number, "job_id": f"copy-{number}", "name": f"copy {number}"}
            for number in range(10_000)
        ]
        columns = ", ".join(f'"{name}"' for name in row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO experiments ({columns}) VALUES ({values})"), copies)
    page.clock.install()
    page.goto("/experiments")
    page.wait_for_function("() => document.getElementById('experiments').dataset.loaded === '10130'")
    shown = page.locator("#experiments tbody tr[data-key]")
    assert shown.count() < 120
    page.get_by_role("searchbox", name="Search").fill("copy id>=10990")
    expect(page.locator("[data-count]")).to_have_text("10 of 10,130")
    page.get_by_role("searchbox", name="Search").fill("")
    page.locator("#experiments .scroll").evaluate("(one) => one.scrollTo(0, one.scrollHeight)")
    expect(page.locator("#experiments tr[data-key='1']")).to_be_visible()
    assert shown.count() < 120
    # A change behind the first part of the rows is shown, and neither the choice nor the place in the table is lost.
    first = page.locator("#experiments tr[data-key='1']")
    first.get_by_role("checkbox").check()
    place = page.locator("#experiments .scroll").evaluate("(one) => one.scrollTop")
    site.client.call("PATCH", "/api/v1/experiments/1", {"name": "renamed meanwhile"})
    # A list that takes long to load is loaded seldom.
    page.wait_for_timeout(500)
    page.clock.fast_forward(120_000)
    expect(first).to_contain_text("renamed meanwhile")
    expect(first.get_by_role("checkbox")).to_be_checked()
    assert page.locator("#experiments .scroll").evaluate("(one) => one.scrollTop") == place
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM experiments WHERE id >= 1000"))


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
