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
    expect(page.locator("#log-count")).to_contain_text("the log has ended")
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


def test_lines_are_chosen_by_time_and_by_rank(page, log):
    # Its lines have no ranks, so there is nothing to choose.
    expect(page.get_by_label("Rank")).to_be_hidden()
    page.get_by_label("After").fill("2999-01-01T00:00:30")
    expect(log.locator(".line")).to_have_count(0)
    assert "log-after=2999" in page.url
    page.reload()
    expect(page.get_by_label("After")).to_have_value("2999-01-01T00:00:30")
    expect(log.locator(".line")).to_have_count(0)
    page.get_by_label("After").fill("")
    page.get_by_label("Before").fill("2999-01-01T00:00:30")
    expect(log).to_contain_text("KeyError")


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
    expect(page.locator("#log-count")).to_contain_text("the log has ended", timeout=60_000)
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


def counts(page):
    """Return how many lines are said to be shown, and of how many, once the log has ended."""
    said = page.locator("#log-count")
    expect(said).to_have_text(re.compile(r"^[\d,]+ of [\d,]+ lines, the log has ended$"))
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said.inner_text())]


def test_log_at_the_error_says_how_many_lines_are_not_shown(page, failed, site):
    page.goto(f"/trials/{failed.trials[0]}")
    page.get_by_role("link", name="Open the log at the error").click()
    expect(page.locator("#log .line.target")).to_be_in_viewport()
    shown, total = counts(page)
    present = ids(page)
    stored = [int(line["id"]) for line in site.client.log(failed.trials[0])]
    assert shown == len(present) < 300
    assert total - shown == len([number for number in stored if number < present[0]]) > 2000
    page.get_by_role("button", name="Earlier lines").click()
    page.wait_for_function(f"() => document.querySelectorAll('#log .line').length === {shown + 1000}")
    expect(page.locator("#log-count")).to_contain_text(f"{shown + 1000:,} of {total:,} lines")


def test_whole_log_is_downloaded(page, log, failed, site, tmp_path):
    with page.expect_download() as started:
        page.get_by_role("link", name="Download").click()
    assert started.value.suggested_filename == f"trial-{failed.trials[0]}.log"
    started.value.save_as(tmp_path / "log")
    text = (tmp_path / "log").read_text()
    for part in ("first", *(f"burst {number}" for number in (0, 1249, 2499)), "KeyError: 'the cause'"):
        assert f" {part}\n" in text
    assert text.count(" burst ") == 2500


def test_a_line_has_an_address(page, log, failed, site, new_page):
    (line,) = (one for one in site.client.log(failed.trials[0]) if one["log"] == "burst 7\n")
    # Not among the lines that are shown at first.
    assert int(line["id"]) not in ids(page)
    log.locator(".line").last.locator("a.at").click()
    assert page.url.endswith(f"line={ids(page)[-1]}") or f"line={ids(page)[-1]}&" in page.url
    reader = new_page()
    log_in(reader, site)
    reader.goto(f"/trials/{failed.trials[0]}/logs?line={line['id']}")
    target = reader.locator("#log .line.target")
    expect(target).to_contain_text("burst 7")
    expect(target).to_be_in_viewport()


def test_next_error_goes_from_error_to_error_of_the_whole_log(page, site):
    script = """
import sys
def show(*lines):
    sys.stdout.write("".join(f"{line}\\n" for line in lines)); sys.stdout.flush()
show("ERROR the early one", "ERROR its second line")
show(*(f"between {number}" for number in range(1500)))
show("ERROR the late one")
"""
    config = {
        "name": "errors",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    number = submit(site, config, {"train.py": script.encode()})
    site.client.wait_for_state(number, "COMPLETED", 60)
    (trial,) = site.client.trials(number)
    page.goto(f"/trials/{trial['id']}/logs")
    expect(page.locator("#log-count")).to_contain_text("the log has ended")
    button = page.get_by_role("button", name="Next error")
    target = page.locator("#log .line.target")
    for text in ("ERROR the late one", "ERROR the early one", "ERROR the late one"):
        button.click()
        expect(target).to_contain_text(text)
        expect(target).to_be_in_viewport()
        expect(page.locator("#log-count")).to_contain_text("the log has ended")


def test_long_lines_are_wrapped_or_scrolled(page, log):
    bar = log.locator(".line").filter(has_text="49/49 ###")
    wrapped = bar.bounding_box()["height"]
    assert log.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    page.get_by_label("wrap lines").uncheck()
    page.wait_for_function(
        "() => document.querySelector('#log').scrollWidth > document.querySelector('#log').clientWidth"
    )
    assert bar.bounding_box()["height"] < wrapped
    assert bar.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.reload()
    expect(page.get_by_label("wrap lines")).not_to_be_checked()
    expect(log).to_have_class(re.compile("unwrapped"))
