"""The log as people read it: in its order, in colours, by level, and long."""

from __future__ import annotations

import re

import pytest
from master.conftest import RealMaster
from playwright.sync_api import expect

from browser.conftest import log_in
from browser.data import Search, submit

_SCRIPT = r"""
import logging, os, sys
def show(*lines, to=sys.stdout):
    to.write("".join(f"{line}\n" for line in lines)); to.flush()
print("first", flush=True)
show(*(f"burst {number}" for number in range(2500)))
logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
logging.getLogger("mine").warning("be careful")
show("\x1b[1;31mred and bold\x1b[0m then \x1b[38;2;1;2;3mfine\x1b[0m plain")
for part in range(50):
    sys.stdout.write(f"\r{part}/49 " + "#" * 400); sys.stdout.flush()
show("")
if os.environ.get("MANY"):
    show(*(f"many {number}" for number in range(20_000)))
raise KeyError("the cause")
"""


@pytest.fixture(scope="module")
def failed(site: RealMaster) -> Search:
    """A trial that prints much and fails."""
    config = {
        "name": "loud",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    number = submit(site, config, {"train.py": _SCRIPT.encode()})
    site.client.wait_for_state(number, "ERROR", 60)
    return Search(number, [trial["id"] for trial in site.client.trials(number)])


def test_what_of_a_log_is_shown_is_part_of_the_address(page, failed):
    page.goto(f"/trials/{failed.trials[0]}/logs")
    page.get_by_label("Level").select_option("ERROR")
    page.get_by_label("Search").fill("KeyError: 'the")
    page.get_by_label("follow").uncheck()
    lines = page.locator("#log [data-id]")
    expect(lines).to_have_count(1)
    page.goto("/jobs")
    page.go_back()
    expect(lines).to_have_count(1)
    expect(page.get_by_label("Search")).to_have_value("KeyError: 'the")
    expect(page.get_by_label("Level")).to_have_value("ERROR")
    expect(page.get_by_label("follow")).not_to_be_checked()


@pytest.fixture
def log(page, failed):
    """The log of that trial, complete."""
    page.goto(f"/trials/{failed.trials[0]}/logs")
    expect(page.locator("#log-count")).to_contain_text("complete")
    return page.get_by_role("log")


def ids(page):
    """Return the ids of the shown lines, from top to bottom."""
    return page.eval_on_selector_all("#log .line", "(all) => all.map((one) => Number(one.dataset.id))")


@pytest.mark.main_path
def test_lines_are_in_the_order_in_which_they_were_stored(page, log, failed, site):
    shown = ids(page)
    page.get_by_role("button", name="Earlier lines").click()
    page.wait_for_function(f"() => document.querySelectorAll('#log .line').length > {len(shown) + 900}")
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.get_by_role("button", name="Earlier lines")).to_be_hidden()
    stored = [int(line["id"]) for line in site.client.log(failed.trials[0])]
    # The 50 states of the progress bar were stored as parts of one line.
    assert ids(page) == sorted(ids(page))
    assert set(ids(page)) <= set(stored)
    assert ids(page)[0] == stored[0]
    assert log.get_by_text("burst 0", exact=True).count() == 1
    assert log.get_by_text("burst 2499", exact=True).count() == 1


@pytest.mark.main_path
def test_escape_codes_are_colours(log):
    red = log.get_by_text("red and bold", exact=True)
    expect(red).to_have_class(re.compile(r"\bbold\b.*\bfg-1\b"))
    assert log.get_by_text("fine", exact=True).evaluate("(one) => one.style.color") == "rgb(1, 2, 3)"
    assert "\x1b" not in log.inner_text()


def test_progress_bar_is_one_line(log):
    bars = log.locator(".line").filter(has_text="/49 ")
    expect(bars).to_have_count(1)
    expect(bars).to_contain_text("49/49 ###")


def test_levels_are_read_from_the_text(page, log):
    page.get_by_label("Level").select_option("WARNING")
    expect(log).to_contain_text("be careful")
    expect(log).to_contain_text("KeyError")
    expect(log.get_by_text("burst 2499", exact=True)).to_have_count(0)
    page.get_by_label("Level").select_option("ERROR")
    expect(log.get_by_text("be careful")).to_have_count(0)
    expect(log).to_contain_text("Traceback")
    # The frames of the traceback belong to the error.
    expect(log).to_contain_text("train.py")


@pytest.mark.main_path
def test_log_opens_at_the_error(page, failed):
    page.goto(f"/trials/{failed.trials[0]}")
    page.get_by_role("link", name="Open the log at the error").click()
    target = page.locator("#log .line.target")
    expect(target).to_contain_text("KeyError: 'the cause'")
    expect(target).to_be_in_viewport()


def test_times_are_those_of_the_browser(new_page, site, failed):
    found = {}
    for zone in ("Asia/Tokyo", "America/Los_Angeles"):
        page = new_page(timezone_id=zone)
        log_in(page, site)
        page.goto(f"/trials/{failed.trials[0]}")
        on_page = page.locator("#facts time").first.inner_text()
        page.goto(f"/trials/{failed.trials[0]}/logs")
        in_log = page.locator("#log time").first.text_content()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", in_log)
        found[zone] = on_page, in_log
    hours = [int(on_page[11:13]) for on_page, _ in found.values()]
    # Tokyo is 16 or 17 hours before Los Angeles.
    assert (hours[0] - hours[1]) % 24 in (16, 17)
    assert all(on_page[:13] == in_log[:13] for on_page, in_log in found.values())


def test_twenty_thousand_lines_are_scrolled_at_once(page, site):
    config = {
        "name": "long",
        "entrypoint": "python3 train.py",
        "environment": {"environment_variables": ["MANY=1"]},
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    number = submit(site, config, {"train.py": _SCRIPT.encode()})
    trial = site.client.trials(number)[0]["id"]
    page.goto(f"/trials/{trial}/logs")
    expect(page.get_by_role("log")).to_contain_text("many 19999", timeout=60_000)
    expect(page.locator("#log-count")).to_contain_text("complete", timeout=60_000)
    # Blocks outside of the view have no layout: what a frame costs does not grow with the log.
    drawn = page.evaluate(
        """() => {
          const blocks = [...document.querySelectorAll('#log .block')];
          const isDrawn = (block) => block.firstElementChild.checkVisibility({ contentVisibilityAuto: true });
          return [blocks.length, blocks.filter(isDrawn).length];
        }"""
    )
    assert drawn[0] > 10
    assert drawn[1] <= 6, drawn
