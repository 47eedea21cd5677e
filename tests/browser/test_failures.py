"""What the pages say when something went wrong."""

from __future__ import annotations

import re

import pytest
from master.conftest import RealMaster
from master.fakes import eventually, file_entry
from playwright.sync_api import expect

from browser.conftest import log_in
from browser.data import PRELUDE, Search, submit
from browser.watch import accessibility_faults

_BREAKS = """
for step in range(1, 31):
    report("training", step, loss=1.0 / step if step < 12 else "NaN", epochs=step)
report("validation", 30, val_loss=0.5)
def inner(x):
    return 1 / x
inner(0)
"""

_WAITS = """
gate = pathlib.Path(json.loads(os.environ["DET_HPARAMS"])["gate"])
while not gate.exists():
    time.sleep(0.05)
report("validation", 1, loss=1.0)
"""


@pytest.fixture(scope="module")
def broken(site: RealMaster) -> Search:
    """A trial whose loss becomes NaN, and that fails in both of its runs."""
    config = {
        "name": "breaks",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "val_loss"},
        "max_restarts": 1,
    }
    number = submit(site, config, {"train.py": PRELUDE + _BREAKS.encode()})
    site.client.wait_for_state(number, "ERROR", 60)
    return Search(number, [trial["id"] for trial in site.client.trials(number)])


@pytest.mark.main_path
def test_cause_of_a_failure_is_one_click_from_the_list(page, broken):
    page.goto("/experiments")
    # The only click.
    page.locator(f"tr[data-key='{broken.number}'] a").first.click()
    alert = page.get_by_role("alert")
    expect(alert.get_by_role("heading")).to_have_text("ZeroDivisionError: division by zero")
    expect(alert).to_contain_text("return 1 / x")
    expect(alert).to_contain_text("run 2 of 2 with exit code 1")
    expect(alert.get_by_role("button", name="Run again")).to_be_visible()


def test_failed_experiment_is_run_again_from_its_box(page, site, tmp_path):
    mended = tmp_path / "mended"
    config = {
        "name": "mended later",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"mended": str(mended)},
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    script = 'open(json.loads(os.environ["DET_HPARAMS"])["mended"])\nreport("validation", 1, loss=1.0)\n'
    number = submit(site, config, {"train.py": PRELUDE + script.encode()})
    site.client.wait_for_state(number, "ERROR", 60)
    page.goto(f"/experiments/{number}")
    mended.touch()
    page.get_by_role("alert").get_by_role("button", name="Run again").click()
    expect(page.locator("#heading .state")).to_have_text("completed")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_copied_cause_is_the_text_of_the_box(page, broken):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/trials/{broken.trials[0]}")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == page.locator(".cause").text_content()
    assert copied.splitlines()[0].startswith("Traceback")


def test_page_tells_since_when_a_loss_is_nan(page, broken):
    for address in (f"/experiments/{broken.number}", f"/trials/{broken.trials[0]}"):
        page.goto(address)
        expect(page.locator(".alert.warning")).to_contain_text("loss (training) is NaN since batch 12")


def test_nothing_that_failed_looks_as_if_it_succeeded(page, broken):
    page.goto(f"/experiments/{broken.number}")
    row = page.locator(f"#trials tr[data-key='{broken.trials[0]}']")
    expect(row).to_have_class("failed")
    expect(row.locator("[aria-label=best]")).to_have_count(0)
    assert page.title().startswith("✗")
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg+xml,")
    page.goto(f"/trials/{broken.trials[0]}")
    outcomes = page.locator("#run-list .state")
    expect(outcomes).to_have_text(["failed, exit code 1", "failed, exit code 1"])
    for outcome in outcomes.all():
        expect(outcome).to_have_class(re.compile("error"))
    assert accessibility_faults(page) == []


def test_failed_job_shows_its_exit_code_and_its_last_lines(page, site):
    job = {"description": "breaks", "entrypoint": ["python3", "job.py"], "resources": {"slots": 0}}
    script = b"import sys\nprint('only this', file=sys.stderr)\nsys.exit(2)\n"
    body = {"config": job, "files": [file_entry("job.py", script)]}
    command = site.client.post("/api/v1/commands", body)["command"]["id"]
    eventually(lambda: site.client.get(f"/api/v1/commands/{command}")["command"]["exitStatus"])
    page.goto("/jobs")
    mark = page.locator(f"tr[data-key='{command}'] .state")
    expect(mark).to_have_text("exit code 2")
    expect(mark).to_have_class(re.compile("error"))
    # A sorted table stays sorted.
    page.get_by_role("button", name="State").click()
    page.get_by_role("button", name="State").click()
    page.goto(f"/jobs/{command}")
    assert page.title().startswith("✗")
    expect(page.get_by_role("alert")).to_contain_text("only this")
    assert accessibility_faults(page) == []
    page.go_back()
    expect(page.locator("#jobs th[aria-sort=descending]")).to_have_text("State")


@pytest.mark.parametrize("is_in_background", [False, True], ids=["visible", "in the background"])
def test_notification_comes_when_a_watched_run_ends(page, site, tmp_path, is_in_background):
    gate = tmp_path / "gate"
    config = {
        "name": "watched",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"gate": str(gate)},
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    page.add_init_script(
        "window.told = [];"
        "Object.defineProperty(document, 'hidden', {get: () => window.isAway === true});"
        "window.Notification = class { constructor(title) { window.told.push(title); }"
        " static requestPermission() { return Promise.resolve('granted'); } };"
    )
    number = submit(site, config, {"train.py": PRELUDE + _WAITS.encode()})
    page.clock.install()
    page.goto(f"/experiments/{number}")
    button = page.get_by_role("button", name="Notify me")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    site.client.call("PATCH", f"/api/v1/experiments/{number}", {"description": "described anew"})
    expect(page.locator("#description")).to_have_text("described anew")
    expect(button).to_have_attribute("aria-pressed", "true")
    icon = page.locator("link[rel=icon]").get_attribute("href")
    if is_in_background:
        page.evaluate("window.isAway = true; document.dispatchEvent(new Event('visibilitychange'))")
    gate.touch()
    if is_in_background:
        site.client.wait_for_state(number, "COMPLETED", 60)
        assert page.evaluate("() => window.told") == []
        page.clock.fast_forward(20_000)
    page.wait_for_function("() => window.told.length === 1")
    assert "watched" in page.evaluate("() => window.told[0]")
    assert page.title().startswith("✓")
    assert page.locator("link[rel=icon]").get_attribute("href") != icon


def test_long_errors_fit_on_a_phone(new_page, site):
    """Long words, long lines and long names of errors are no reason to scroll a page to the side."""
    script = (
        "class " + "Long" * 40 + "Error(Exception): pass\n"
        "print('W' * 600, flush=True)\n"
        "report('validation', 1, loss=1.0)\n"
        "raise " + "Long" * 40 + "Error('no_such_file_' * 40 + ' and words ' * 40)\n"
    )
    config = {
        "name": "fails at length",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"width": 3},
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 1,
    }
    number = submit(site, config, {"train.py": PRELUDE + script.encode()})
    site.client.wait_for_state(number, "ERROR", 60)
    (trial,) = site.client.trials(number)
    page = new_page(viewport={"width": 390, "height": 844})
    log_in(page, site)
    for address in (
        f"/experiments/{number}",
        f"/trials/{trial['id']}",
        f"/trials/{trial['id']}/logs",
        f"/experiments/{number}/checkpoints",
    ):
        page.goto(address)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, address
    page.goto(f"/trials/{trial['id']}")
    box = page.locator(".cause").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
