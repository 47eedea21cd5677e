"""A list with more experiments than come with the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import SINGLE
from playwright.sync_api import expect

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
    """The rows of the list, once the older ones have come."""
    page.goto("/experiments")
    found = page.locator("#experiments tbody tr")
    expect(found).to_have_count(COUNT)
    return found


def keys(page):
    """Return the numbers of the experiments that are shown, from top to bottom."""
    shown = "[...document.querySelectorAll('#experiments tbody tr:not([hidden])')]"
    return page.evaluate(f"() => {shown}.map((row) => Number(row.dataset.key))")


def test_search_finds_ids_names_and_labels_as_one_types(page, rows):
    assert keys(page) == list(range(COUNT, 0, -1))
    box = page.get_by_role("searchbox")
    for text, found in (("run 77", {78}), ("EVEN", set(range(1, COUNT + 1, 2))), ("128", {128, 129})):
        box.fill(text)
        assert set(keys(page)) == found
    box.fill("nobody")
    expect(page.get_by_text("No experiment matches.")).to_be_visible()
    box.fill("")
    page.get_by_label("State").select_option("PAUSED")
    assert len(keys(page)) == COUNT


def test_a_click_sorts_and_another_one_turns_it_round(page, rows):
    head = page.get_by_role("button", name="Name")
    head.click()
    expect(page.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
    # As people count: 2 before 10.
    assert keys(page) == list(range(1, COUNT + 1))
    head.click()
    assert keys(page) == list(range(COUNT, 0, -1))


def test_new_ones_come_on_top_and_older_ones_stay(page, rows, site):
    number = site.client.create(f"{SINGLE}name: the newest\n", activate=False)
    expect(rows).to_have_count(COUNT + 1)
    assert keys(page) == list(range(number, 0, -1))
    site.client.move(number, "kill")
    expect(page.locator(f"tr[data-key='{number}']")).to_contain_text("canceled")
