"""Editing in place, forking, and what a search found."""

from __future__ import annotations

import pytest
import yaml
from master.conftest import RealMaster
from playwright.sync_api import expect

from browser.conftest import log_in
from browser.data import PRELUDE, Search, submit

_TRIES = """
hparams = json.loads(os.environ["DET_HPARAMS"])
report("validation", 10, val_loss=(hparams["lr"] - 3) ** 2 + hparams["noise"] / 100)
"""


_CLIMBS = """
hparams = json.loads(os.environ["DET_HPARAMS"])
for at in (10, 20):
    report("validation", at, loss=hparams["lr"], batches=at)
    if should_stop():
        acknowledge()
        break
"""


@pytest.fixture(scope="module")
def search(site: RealMaster) -> Search:
    """A search over six configurations, with one hyperparameter that matters."""
    config = {
        "name": "tries",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "lr": {"type": "double", "minval": 0, "maxval": 10},
            "noise": {"type": "double", "minval": 0, "maxval": 1},
        },
        "searcher": {
            "name": "random", "metric": "val_loss", "smaller_is_better": True, "max_trials": 6,
            "max_concurrent_trials": 2,
        },
        "max_restarts": 0,
        "reproducibility": {"experiment_seed": 3},
    }  # fmt: skip
    number = submit(site, config, {"train.py": PRELUDE + _TRIES.encode()})
    site.client.wait_for_state(number, "COMPLETED", 90)
    return Search(number, sorted(trial["id"] for trial in site.client.trials(number)))


@pytest.mark.main_path
def test_name_description_labels_and_star_are_edited_in_place(page, site, search):
    as_new = {"name": "tries", "description": "", "labels": []}
    site.client.call("PATCH", f"/api/v1/experiments/{search.number}", as_new)
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name="Edit the name").click()
    field = page.get_by_role("textbox", name="Edit the name")
    expect(field).to_have_value("tries")
    field.fill("a better name")
    field.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("a better name")
    page.get_by_role("button", name="Edit the description").click()
    page.get_by_role("textbox", name="Edit the description").fill("what it is for")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#description")).to_have_text("what it is for")
    page.get_by_role("button", name="Edit the label").click()
    page.get_by_role("textbox", name="Edit the label").fill("mine")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#labels")).to_contain_text("mine")
    page.get_by_role("button", name="Star", exact=True).click()
    expect(page.get_by_role("button", name="Star", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Remove the label mine").click()
    expect(page.locator("#labels")).not_to_contain_text("mine")
    shown = site.client.experiment(search.number)
    assert (shown["name"], shown["description"]) == ("a better name", "what it is for")
    assert shown["labels"] == ["starred"]


def test_escape_leaves_the_text_as_it_was(page, site, search):
    page.goto(f"/experiments/{search.number}")
    before = site.client.experiment(search.number)["name"]
    page.get_by_role("button", name="Edit the name").click()
    page.get_by_role("textbox", name="Edit the name").fill("never mind")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_have_text(before)
    assert site.client.experiment(search.number)["name"] == before


@pytest.mark.parametrize("what", ["name", "description", "notes"])
def test_a_refresh_of_the_page_leaves_what_is_being_typed(page, site, search, what):
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name=f"Edit the {what}").click()
    field = page.get_by_role("textbox", name=f"Edit the {what}")
    field.fill("half a sentence")
    # Another client changes what stands beside the field.
    label = f"seen-{what}"
    site.client.call("PUT", f"/api/v1/experiments/{search.number}/labels/{label}")
    expect(page.locator("#labels")).to_contain_text(label)
    expect(field).to_have_value("half a sentence")
    expect(field).to_be_focused()
    field.press("Escape")
    button = page.get_by_role("button", name=f"Edit the {what}")
    button.click()
    expect(page.get_by_role("textbox", name=f"Edit the {what}")).to_be_visible()


def test_a_press_reaches_the_notes_while_the_curves_are_drawn(page, search):
    held = []
    page.route("**/figures/wall?*", lambda route: held.append(route))
    with page.expect_request("**/figures/wall?*"):
        page.goto(f"/experiments/{search.number}")
    button = page.get_by_role("button", name="Edit the notes")
    button.hover()
    page.mouse.down()
    # The cards take the room that was empty before.
    for route in held:
        route.continue_()
    expect(page.locator(".card canvas").first).to_be_visible()
    page.mouse.up()
    expect(page.get_by_role("textbox", name="Edit the notes")).to_be_visible()


def test_notes_are_markdown_that_runs_nothing(page, site, search):
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    notes = "## Found\n\n- **good** at `0.1`\n\n<img src=x onerror=alert(1)>\n\n[bad](javascript:alert(2)) ![x](https://evil.example/x.png)"
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name="Edit the notes").click()
    page.get_by_role("textbox", name="Edit the notes").fill(notes)
    page.get_by_role("button", name="Save").click()
    shown = page.locator("#notes")
    expect(shown.get_by_role("heading")).to_have_text("Found")
    expect(shown.locator("strong")).to_have_text("good")
    expect(shown).to_contain_text("<img src=x onerror=alert(1)>")
    assert shown.locator("img, [onerror], a[href^='javascript']").count() == 0
    assert alerts == []
    assert site.client.experiment(search.number)["notes"] == notes


def test_search_page_tells_what_was_found(page, site, search):
    page.goto(f"/experiments/{search.number}/search")
    best = min(site.client.trials(search.number), key=lambda trial: trial["searcherMetricValue"])
    expect(page.locator("#best-found")).to_contain_text(f"Trial {best['id']}:")
    # The metric depends on `lr`; `noise` adds a hundredth.
    expect(page.locator(".importances li").first).to_contain_text("lr")
    expect(page.locator("[data-draw=progress] circle")).to_have_count(6)
    bars = page.locator("[data-draw=time] rect")
    expect(bars).to_have_count(6)
    # Two at a time, on the slots that they had.
    assert len({bar.get_attribute("y") for bar in bars.all()}) == 2
    slots = page.locator("[data-draw=time] text").all_text_contents()[:2]
    assert [slot.rpartition(" ")[2] for slot in slots] == ["0", "1"]
    expect(page.locator(".trial-line")).to_have_count(6)


def expect_dots(page, count):
    """Expect so many trials against each of the two hyperparameters."""
    plots = page.locator("[data-effect]")
    expect(plots).to_have_count(2)
    for plot in plots.all():
        plot.scroll_into_view_if_needed()
        expect(plot.locator(".point")).to_have_count(count)


def test_list_of_runs_chooses_what_the_plots_show(page, site, search):
    page.goto(f"/experiments/{search.number}/search")
    lines, rows = page.locator(".trial-line"), page.locator("[data-runs] li:visible")
    expect(lines).to_have_count(6)
    expect(rows).to_have_count(6)
    values = {one["id"]: one["searcherMetricValue"] for one in site.client.trials(search.number)}
    shown = rows.evaluate_all("rows => rows.map((row) => Number(row.dataset.run))")
    assert shown == sorted(values, key=values.get)
    rows.first.hover()
    expect(page.locator(".trial-line.lit")).to_have_attribute("data-trial", str(shown[0]))
    rows.first.get_by_role("button").click()
    expect(lines).to_have_count(5)
    expect(page.locator("#trials tbody tr[data-key]")).to_have_count(5)
    expect_dots(page, 5)
    rows.first.get_by_role("button").click()
    expect(lines).to_have_count(6)
    expect_dots(page, 6)
    bound = (values[shown[1]] + values[shown[2]]) / 2
    page.locator("[name=filter]").fill(f"best<{bound}")
    for found in (lines, rows, page.locator("[data-draw=time] rect")):
        expect(found).to_have_count(2)
    page.locator("[name=filter]").fill("best<-1")
    expect(page.locator("[data-draw=parallel]")).to_have_text("No trial is shown.")
    # A sent link shows the same.
    page.locator("[name=filter]").fill(f"best<{bound}")
    page.reload()
    expect(lines).to_have_count(2)
    expect_dots(page, 2)


def press_and_draw(page):
    """Draw over the last axis, up from its end, and keep the button down; return what is pressed."""
    grip = page.locator(".grip").last
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle, box["y"] + box["height"] - 10)
    page.mouse.down()
    page.mouse.move(middle, box["y"] + box["height"] * 0.6, steps=5)
    return grip


def test_brush_of_an_axis_filters_the_table(page, search):
    page.goto(f"/experiments/{search.number}/search")
    # The table below has its rows, so nothing moves any more.
    expect(page.locator("#trials tbody tr[data-key]")).to_have_count(6)
    press_and_draw(page)
    page.mouse.up()
    shown = page.locator("#trials tbody tr[data-key]")
    expect(page.locator(".trial-line.off").first).to_be_attached()
    count = page.locator(".trial-line:not(.off)").count()
    assert 0 < count < 6
    expect(shown).to_have_count(count)
    expect(page.locator("[data-runs] li:visible")).to_have_count(count)
    expect_dots(page, count)
    # The button is about the runs that are listed.
    page.get_by_role("button", name="Show or hide all").click()
    page.locator(".grip").last.click()
    expect(shown).to_have_count(6 - count)
    page.get_by_role("button", name="Show or hide all").click()
    expect(shown).to_have_count(6)


def test_canceled_brush_leaves_the_plots_as_they_were(page, search):
    page.goto(f"/experiments/{search.number}/search")
    expect(page.locator("#trials tbody tr[data-key]")).to_have_count(6)
    grip = press_and_draw(page)
    # As when a finger scrolls the page.
    grip.dispatch_event("pointercancel")
    expect(page.locator(".trial-line.off")).to_have_count(0)
    # Without the mouse, whose button is still down.
    page.locator("[data-runs] li button").first.dispatch_event("click")
    expect(page.locator(".trial-line")).to_have_count(5)
    page.mouse.up()
    page.locator("[data-runs] li button").first.click()
    expect(page.locator(".trial-line")).to_have_count(6)


def test_rungs_are_a_ladder_and_the_best_config_is_copied(page, site):
    config = {
        "name": "rungs",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {
            "name": "async_halving", "metric": "loss", "max_trials": 4, "num_rungs": 2, "divisor": 2,
            "time_metric": "batches", "max_time": 20,
        },
        "max_restarts": 0,
        "reproducibility": {"experiment_seed": 3},
    }  # fmt: skip
    number = submit(site, config, {"train.py": PRELUDE + _CLIMBS.encode()})
    site.client.wait_for_state(number, "COMPLETED", 90)
    (bracket,) = site.client.get(f"/api/v1/experiments/{number}/searcher/rungs")["brackets"]
    short, long = ([one["trialId"] for one in rung["results"]] for rung in bracket["rungs"])
    page.goto(f"/experiments/{number}/search")
    steps = page.locator(".ladder li")
    # The longest rung is on top, and the best trials are first.
    for step, length, reached in ((steps.nth(0), 20, long), (steps.nth(1), 10, short)):
        expect(step.locator(".step")).to_contain_text(f"{length} batches{len(reached)} trial")
        assert step.locator(".chip").all_text_contents() == [str(trial) for trial in reached]
    assert len(short) == 4
    assert set(steps.nth(1).locator(".chip.moved").all_text_contents()) == {str(trial) for trial in long}
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as YAML").click()
    expect(page.locator("#said")).to_contain_text("opied")
    best = site.client.trial(site.client.experiment(number)["bestTrialId"])
    assert yaml.safe_load(page.evaluate("() => navigator.clipboard.readText()")) == best["hparams"]


@pytest.mark.main_path
def test_fork_is_checked_while_typing_and_started(page, site, search):
    page.goto(f"/experiments/{search.number}/search")
    page.get_by_role("link", name="Train it longer").click()
    editor = page.get_by_role("textbox", name="Config")
    expect(page.locator("#fork-result")).to_have_text("The config is valid.")
    valid = editor.input_value()
    assert "name: single" in valid
    with page.watch.forgiving("400"):
        editor.fill(valid.replace("max_restarts: 0", "max_restarts: many"))
        expect(page.locator("#fork-result")).to_contain_text("max_restarts")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    editor.fill(valid)
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#heading")).to_contain_text("best, longer")
    number = int(page.url.rsplit("/", 1)[1])
    site.client.wait_for_state(number, "COMPLETED", 60)
    (trial,) = site.client.trials(number)
    best = min(site.client.trials(search.number), key=lambda one: one["searcherMetricValue"])
    assert trial["hparams"] == best["hparams"]
    assert site.client.experiment(number)["forkedFrom"] == search.number
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url("**/experiments")


def test_trials_without_a_value_at_a_length_are_counted_and_drawn_neutral(page, search):
    """The best trial of all has no value at the length at which trials are compared."""
    without = {}

    def leave_out(route):
        answer = route.fetch()
        body = answer.json()
        best = min(body["trials"], key=lambda trial: trial["best"])
        without.update(id=best["id"], best=best["best"])
        best["value"] = None
        route.fulfill(response=answer, json=body)

    page.route("**/figures/search?*", leave_out)
    page.goto(f"/experiments/{search.number}/search")
    expect(page.locator("[data-left-out]")).to_have_text("1 of 6 trials has no value yet")
    colour = "(one) => getComputedStyle(one).stroke"
    faint = page.locator("[data-search]").evaluate(
        "(one) => { one.style.stroke = 'var(--faint)'; return getComputedStyle(one).stroke; }"
    )
    lines = page.locator(".trial-line")
    expect(lines).to_have_count(6)
    drawn = {int(line.get_attribute("data-trial")): line.evaluate(colour) for line in lines.all()}
    assert [trial for trial, shown in drawn.items() if shown == faint] == [without["id"]]
    swatch = page.locator(f"[data-runs] li[data-run='{without['id']}'] .swatch")
    assert swatch.evaluate("(one) => getComputedStyle(one).backgroundColor") == faint
    # It is the best so far nevertheless.
    dots = page.locator("[data-draw=progress] circle title").all_text_contents()
    assert len(dots) == 6
    assert any(text.startswith(f"Trial {without['id']}: ") for text in dots)


def test_notes_of_two_tabs_do_not_overwrite_each_other(new_page, site, search):
    site.client.call("PATCH", f"/api/v1/experiments/{search.number}", {"notes": "as they were\r\nbefore"})
    pages = [new_page(), new_page()]
    for page in pages:
        log_in(page, site)
        page.goto(f"/experiments/{search.number}")
        page.get_by_role("button", name="Edit the notes").click()
    first, second = (page.get_by_role("textbox", name="Edit the notes") for page in pages)
    first.fill("of the first tab")
    pages[0].get_by_role("button", name="Save").click()
    expect(pages[0].locator("#notes")).to_have_text("of the first tab")
    second.fill("of the second tab")
    with pages[1].watch.forgiving("409"):
        pages[1].get_by_role("button", name="Save").click()
        expect(pages[1].get_by_role("alert")).to_contain_text("notes")
        expect(pages[1].get_by_role("alert")).to_contain_text("nothing was saved")
    expect(second).to_have_value("of the second tab")
    assert site.client.experiment(search.number)["notes"] == "of the first tab"
    # The current text is edited next.
    pages[1].get_by_role("button", name="Cancel").click()
    pages[1].get_by_role("button", name="Edit the notes").click()
    expect(second).to_have_value("of the first tab")
    second.fill("of both tabs")
    pages[1].get_by_role("button", name="Save").click()
    expect(pages[1].locator("#notes")).to_have_text("of both tabs")
    assert site.client.experiment(search.number)["notes"] == "of both tabs"


def test_enter_in_the_dialog_of_labels_adds_the_label(page, site, search):
    page.goto("/experiments")
    row = page.locator(f"tr[data-key='{search.number}']")
    row.locator("input[type=checkbox]").check()
    page.get_by_role("button", name="Label").click()
    # The field has the focus.
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(row).to_contain_text("by-keyboard")
    assert "by-keyboard" in site.client.experiment(search.number)["labels"]
    # Enter does nothing that loses work: a question begins at Back.
    page.get_by_role("button", name="Delete").click()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert site.client.experiment(search.number)["id"] == search.number


def test_search_says_that_it_loads_and_lists_the_best_trials_first(page, site, search):
    held = []
    page.route("**/figures/search?*", lambda route: held.append(route))
    with page.expect_request("**/figures/search?*"):
        page.goto(f"/experiments/{search.number}/search")
    boxes = page.locator(".search-plots [data-draw]")
    expect(boxes).to_have_text(["Loading …"] * 4)
    for route in held:
        route.continue_()
    expect(page.locator(".trial-line")).to_have_count(6)
    expect(page.get_by_text("Loading …")).to_have_count(0)
    best = sorted(site.client.trials(search.number), key=lambda trial: trial["searcherMetricValue"])
    rows = page.locator("#trials tbody tr[data-key]")
    expect(rows).to_have_count(6)
    shown = rows.evaluate_all("(all) => all.map((one) => Number(one.dataset.key))")
    assert shown == [trial["id"] for trial in best]
    assert shown != sorted(shown)


def test_change_without_an_answer_says_that_the_master_cannot_be_reached(page, search):
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name="Edit the description").click()
    page.route("**/api/v1/**", lambda route: route.abort())
    with page.watch.forgiving("ERR_FAILED"):
        page.get_by_role("textbox", name="Edit the description").fill("what it is for")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_have_text(
            "The master cannot be reached. The change may not have been made."
            " Look at it when the master answers again."
        )
