"""The pages as people use them: watched live, steered by buttons, compared, kept."""

from __future__ import annotations

import os
import re
import signal
import zipfile
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import expect

from browser.conftest import USUAL_BROWSER, log_in
from browser.data import EVIL, digits_search, make_webhook, named_search, submit, talker
from browser.watch import Watch, accessibility_faults

PAGES = (
    "/experiments", "/experiments?archived=true", "/experiments/{e}", "/experiments/{e}/search",
    "/experiments/{e}/checkpoints", "/experiments/{e}/code", "/experiments/{e}/config",
    "/experiments/{e}/fork", "/compare?experiment={e}&experiment={e}", "/trials/{t}",
    "/trials/{t}/logs", "/compare?trial={t}&trial={u}", "/trials", "/projects",
    "/models", "/models?archived=true", "/cluster", "/jobs", "/audit", "/webhooks", "/nowhere",
)  # fmt: skip


@pytest.fixture(scope="package")
def search(site):
    """A search that is over, with names that nobody would give, and a webhook that was told of nothing yet."""
    make_webhook(site)
    return named_search(site, EVIL)


@pytest.fixture
def gate(tmp_path):
    """The file that ends a trial that talks."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def open_pages(page, search):
    """Open one page after another, each until its plots and its log are drawn."""
    for template in PAGES:
        address = template.format(e=search.number, t=search.trials[0], u=search.trials[1])
        with page.watch.forgiving("404" if address == "/nowhere" else "^$"):
            page.goto(address)
            page.wait_for_load_state("load")
        for plots in page.locator("[data-draw=effects]").all():
            plots.scroll_into_view_if_needed()
            expect(plots.locator("svg").first).to_be_visible()
        for wall in page.locator("[data-wall]").all():
            # On a phone the cards are below the list of runs, and only cards near the view are drawn.
            wall.locator(".card").first.scroll_into_view_if_needed()
            expect(wall.locator(".card canvas").first).to_be_visible()
        yield address


MOST_POINTS = (
    "Math.max(0, ...[...document.querySelectorAll('.card')].map((one) => Number(one.dataset.points ?? 0)))"
)


def test_a_real_search_is_watched_paused_and_brought_to_its_end(trainer, new_page):
    # In this order: the page is closed before its master ends, which it would report.
    page = new_page(trainer)
    log_in(page, trainer)
    page.goto("/experiments")
    number = digits_search(trainer)
    # The list updates itself without a reload.
    page.locator(f"tr[data-key='{number}'] a").first.click()
    heading = page.locator("#heading")
    expect(heading).to_contain_text("running", timeout=30_000)
    page.wait_for_function(f"() => {MOST_POINTS} > 1", timeout=60_000)
    page.get_by_role("button", name="Pause").click()
    expect(heading).to_contain_text("paused", timeout=30_000)
    assert trainer.client.experiment(number)["state"] == "STATE_PAUSED"
    page.get_by_role("button", name="Activate").click()
    expect(heading).to_contain_text("running", timeout=30_000)
    expect(heading).to_contain_text("completed", timeout=90_000)
    best = trainer.client.experiment(number)["bestTrialId"]
    expect(page.locator("#facts")).to_contain_text(f"trial {best}")
    expect(page.locator(f"#trials tr[data-key='{best}'] [aria-label=best]")).to_be_visible()
    page.wait_for_function(f"() => {MOST_POINTS} === 40")


def test_canceling_asks_first(page, site, gate):
    search = talker(site, gate)
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel this experiment?")
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_be_hidden()
    assert site.client.experiment(search.number)["state"] != "STATE_CANCELED"
    page.locator("#heading").get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    expect(page.locator("#heading")).to_contain_text("canceled")
    assert site.client.experiment(search.number)["state"] == "STATE_CANCELED"


def test_a_question_and_a_choice_outlast_the_first_metric(page, site, gate, tmp_path):
    start = tmp_path / "start"
    search = talker(site, gate, start)
    page.goto(f"/experiments/{search.number}")
    expect(page.get_by_text("No metric was reported yet.")).to_be_visible()
    page.get_by_label(f"Choose trial {search.trials[0]}").check()
    page.locator("#heading").get_by_role("button", name="Kill").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    start.touch()
    # The page takes another shape below the question.
    expect(page.locator(".card canvas").first).to_be_attached()
    expect(page.get_by_text("No metric was reported yet.")).to_have_count(0)
    assert page.evaluate("() => performance.getEntriesByType('navigation')[0].type") == "navigate"
    expect(dialog).to_contain_text("Kill this experiment?")
    dialog.get_by_role("button", name="Back").click()
    expect(page.get_by_label(f"Choose trial {search.trials[0]}")).to_be_checked()
    # The controls that came with the plot steer it.
    page.get_by_label("log y").check()
    page.wait_for_function("() => document.querySelector('.card').card.plot.scales.y.distr === 3")
    expect(page).to_have_url(re.compile("log_y=true"))


def test_slots_of_the_cluster_are_shown_while_tasks_come_and_go(page, site, gate):
    page.goto("/cluster")
    expect(page.locator("#slots .used")).to_have_count(0)
    search = talker(site, gate)
    used = page.locator("#slots .used")
    expect(used).to_have_count(1)
    expect(used.get_by_role("link")).to_have_attribute("href", f"/trials/{search.trials[0]}")
    expect(page.locator("#running")).to_contain_text(f"{search.trials[0]}")
    gate.touch()
    expect(used).to_have_count(0)
    expect(page.locator("#running")).to_contain_text("No task is running.")


@pytest.mark.main_path
def test_two_trials_are_compared(page, search):
    page.goto(f"/experiments/{search.number}")
    # The table stands below the curves: it moves until they are drawn.
    expect(page.locator(".card canvas").first).to_be_visible()
    for trial in search.trials:
        page.get_by_label(f"Choose trial {trial}").check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page).to_have_url(re.compile(r"/compare\?"))
    for trial in search.trials:
        expect(page.get_by_role("columnheader", name=f"Trial {trial}")).to_be_visible()
    expect(page.locator("tr.differs").first).to_be_visible()
    expect(page.locator(".card.searched")).to_have_attribute("data-lines", "4")


@pytest.mark.main_path
def test_a_checkpoint_is_downloaded(page, search, tmp_path):
    page.goto(f"/experiments/{search.number}/checkpoints")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download").first.click()
    started.value.save_as(tmp_path / "checkpoint.zip")
    with zipfile.ZipFile(tmp_path / "checkpoint.zip") as archive:
        assert any(name.endswith("weights") for name in archive.namelist())


def test_a_log_is_followed_and_searched(page, site, gate):
    search = talker(site, gate)
    page.goto(f"/trials/{search.trials[0]}/logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("line 3", timeout=30_000)
    count = log.locator(".line").count()
    expect(log.locator(".line").nth(count + 5)).to_be_visible()
    page.get_by_role("searchbox").fill("line 3")
    expect(log.locator("mark").first).to_have_text("line 3")
    expect(log.get_by_text("line 2", exact=True)).to_have_count(0)
    gate.touch()
    page.get_by_role("searchbox").fill("")
    expect(page.locator("#log-count")).to_contain_text("the log has ended", timeout=30_000)


def test_change_before_the_page_is_connected_is_shown(page, site, search):
    held = []
    page.route("**/live?**", lambda route: held.append(route))
    page.goto(f"/experiments/{search.number}")
    expect(page.locator("#labels")).to_be_attached()
    site.client.call("PUT", f"/api/v1/experiments/{search.number}/labels/meanwhile")
    page.wait_for_function("() => document.readyState === 'complete'")
    assert held
    for route in held:
        route.continue_()
    expect(page.locator("#labels")).to_contain_text("meanwhile")


def test_a_page_survives_a_restart_of_the_master(page, site, gate):
    search = talker(site, gate)
    page.goto(f"/trials/{search.trials[0]}")
    facts = page.locator("#facts")
    # With the first metric the page takes another shape.
    expect(page.locator(".card canvas").first).to_be_visible()
    with page.watch.forgiving("ERR_|Failed to fetch|NetworkError"):
        os.kill(site.running.pid, signal.SIGKILL)
        if psutil.pid_exists(site.running.pid):
            psutil.Process(site.running.pid).wait(60)
        expect(page.locator("#connection")).to_be_visible()
        before = int(re.search(r"Batches\s+(\d+)", facts.inner_text(), re.IGNORECASE)[1])
        site.http.close()
        site.start(port=urlsplit(site.running.url).port)
        expect(page.locator("#connection")).to_be_hidden()
        page.wait_for_function(
            f"() => Number(document.querySelector('#facts').innerText.match(/Batches\\s+(\\d+)/i)[1]) > {before}"
        )


def test_speed_of_a_running_trial_appears_and_fits_on_a_phone(page, site, gate):
    (number,) = talker(site, gate).trials
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/trials/{number}")
    facts = page.locator("#facts")
    expect(facts).to_contain_text("Batches")
    load = {"samples_per_second": 123456.0, "seconds_left": 7000.0, "data_wait_percent": 12.0}
    site.client.report(number, "cpu", None, {"machine": load})
    # Without a reload.
    expect(facts).to_contain_text("123,456")
    expect(facts).to_contain_text("about 1h 5")
    expect(facts).to_contain_text("12 %")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert accessibility_faults(page) == []


def test_run_that_never_ran_has_no_duration_and_no_progress(page, site):
    """More slots than there are: it waits in the queue."""
    config = {
        "name": "waits",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
    }
    busy = [
        submit(site, {**config, "name": "busy"}, {"train.py": b"import time; time.sleep(600)"})
        for _ in range(2)
    ]
    number = submit(site, config, {"train.py": b"print(1)"})
    (trial,) = site.client.trials(number)
    try:
        # By now its age is no zero.
        page.wait_for_timeout(2200)
        for address in (f"/experiments/{number}", f"/trials/{trial['id']}"):
            page.goto(address)
            duration = page.locator("#facts div").filter(has_text="Duration").locator("dd")
            expect(duration).to_have_text("-")
            expect(page.locator("#heading progress")).to_have_count(0)
            expect(page.locator("#heading")).not_to_contain_text("0%")
        page.goto(f"/experiments/{number}")
        row = page.locator(f"#trials tr[data-key='{trial['id']}']")
        expect(row).to_be_visible()
        expect(row).not_to_contain_text("0%")
        expect(row).not_to_contain_text("0s")
    finally:
        for one in (number, *busy):
            site.client.post(f"/api/v1/experiments/{one}/kill")


@dataclass
class Survey:
    """What was found on all pages, by their addresses.

    Attributes:
        faults: of accessibility.
        excess: pixels by which a page is wider than the screen.
        elements: made of text that was none of ours.
        alerts: opened by a script that was none of ours.
    """

    faults: dict[str, list[str]] = field(default_factory=dict)
    excess: dict[str, int] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    alerts: list[str] = field(default_factory=list)


@pytest.fixture(
    scope="package", params=[("light", 1440), ("dark", 390)], ids=["desk-by-day", "phone-by-night"]
)
def survey(request, launched, site, search):
    """All pages, looked at once: the tests below say what must not be there."""
    scheme, width = request.param
    viewport = {"width": width, "height": 900}
    context = launched(USUAL_BROWSER).new_context(
        base_url=site.running.url, viewport=viewport, color_scheme=scheme
    )
    page = context.new_page()
    page.watch = Watch(context, urlsplit(site.running.url).netloc)
    result = Survey()
    page.on("dialog", lambda dialog: (result.alerts.append(dialog.message), dialog.dismiss()))

    def look(address):
        if faults := accessibility_faults(page):
            result.faults[address] = faults
        excess = page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if excess > 0:
            result.excess[address] = excess
        if count := page.locator("main img, main [onload], main [onerror], main script").count():
            result.elements[address] = count

    log_in(page, site)
    for address in open_pages(page, search):
        look(address)
    context.clear_cookies()
    page.goto("/signin")
    look("/signin")
    context.close()
    page.watch.check()
    return result


def test_no_page_has_an_accessibility_fault(survey):
    assert [f"{page}: {fault}" for page, faults in survey.faults.items() for fault in faults] == []


def test_no_name_makes_a_page_wider_than_its_screen(survey):
    assert survey.excess == {}


def test_no_name_becomes_an_element_or_runs(survey):
    assert survey.elements == {}
    assert survey.alerts == []


def test_names_and_lines_of_logs_show_as_they_are(page, search):
    page.goto(f"/experiments/{search.number}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert(1)</script>")
    page.goto(f"/trials/{search.trials[0]}/logs")
    expect(page.get_by_role("log")).to_contain_text("<script>alert(1)</script>")


def test_a_report_is_read_without_a_master(new_page, page, search, tmp_path):
    page.goto(f"/experiments/{search.number}")
    with page.expect_download() as started:
        page.get_by_role("link", name="Report").click()
    path = tmp_path / "report.html"
    started.value.save_as(path)
    reader = new_page(viewport={"width": 390, "height": 844})
    reader.goto(path.as_uri())
    for canvas in reader.locator("[data-report-figure]").all():
        expect(canvas.locator("canvas, svg").first).to_be_visible()
    assert (
        reader.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        <= 0
    )
    assert accessibility_faults(reader) == []
