"""The wall of metrics: cards, runs, zoom, and what an address restores."""

from __future__ import annotations

import base64
import csv
import json
import re
from datetime import datetime, timedelta

import pytest
from master.conftest import RealMaster
from playwright.sync_api import expect

from browser.data import PRELUDE, Search, submit
from det_keras.protocol.values import timestamp

_CURVES = """
hparams = json.loads(os.environ["DET_HPARAMS"])
lr = hparams["lr"]
def send(group, rows):
    for at, values in rows:
        report(group, at, **values)
def metrics(n):
    return {"loss": lr + 1 / n, "accuracy": 1 - 1 / n, "opt/norm": n % 7, "epochs": n}
send("training", [(n * 300, metrics(n)) for n in range(1, 11)])
send("validation", [(n * 600, {"val_loss": lr + 1 / n, "epochs": n * 2}) for n in range(1, 6)])
"""


@pytest.fixture(scope="module")
def search(site: RealMaster) -> Search:
    """A grid of four trials with a few metrics."""
    config = {
        "name": "curves",
        "labels": ["asha"],
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "lr": {"type": "categorical", "vals": [0.1, 0.2, 0.3, 0.4]},
            "optimizer": "adam",
        },
        "searcher": {
            "name": "grid",
            "metric": "val_loss",
            "smaller_is_better": True,
            "max_concurrent_trials": 2,
        },
        "max_restarts": 0,
    }
    number = submit(site, config, {"train.py": PRELUDE + _CURVES.encode()})
    site.client.wait_for_state(number, "COMPLETED", 90)
    return Search(number, sorted(trial["id"] for trial in site.client.trials(number)))


@pytest.fixture
def wall(page, search):
    """The page of that search, with its first card drawn."""
    page.goto(f"/experiments/{search.number}")
    expect(page.locator(".card.searched")).to_have_attribute("data-lines", "8")
    return page


@pytest.fixture(scope="module")
def timed(site) -> int:
    """A trial that has reported metrics and system metrics one to four hours after its creation."""
    config = "name: timed\nsearcher: {name: single, metric: val_loss}\n"
    number = site.client.create(config, unmanaged=True)
    body = {"experimentId": number, "hparams": {}, "unmanaged": True}
    trial = site.client.post("/api/v1/trials", body)["trial"]
    site.client.post(f"/api/v1/trials/{trial['id']}/start", {"trialId": trial["id"], "resume": False})
    created = datetime.fromisoformat(trial["startTime"].replace("Z", "+00:00"))
    for hour in range(1, 5):
        groups = {
            "training": {"loss": 1 / hour},
            "validation": {"val_loss": 2 / hour},
            "test": {"loss": 3 / hour},
            "cpu": {"machine": {"cpu_util_trial": 10 * hour}},
            "memory": {"machine": {"memory_trial_bytes": 790_000_000 + 4_000_000 * hour}},
            "disk": {"machine": {"disk_throughput_write": 48_700_000 + 100_000 * hour}},
        }
        for group, values in groups.items():
            report = {
                "trialId": trial["id"],
                "trialRunId": 1,
                "stepsCompleted": 100 * hour if group in ("training", "validation", "test") else None,
                "reportTime": timestamp(created + timedelta(hours=hour)),
                "metrics": {"avgMetrics": values},
            }
            site.client.post(f"/api/v1/trials/{trial['id']}/metrics", {"group": group, "metrics": report})
    return trial["id"]


def card(page, title):
    return page.locator(f".card[data-card='{title}']")


def plot(title):
    """Return the script for the uPlot of a card; null until it is drawn."""
    return f"""document.querySelector(".card[data-card='{title}']")?.card.plot"""


def axis(page, title="loss"):
    """Return the shown range of the x axis of a card."""
    return page.evaluate(f"() => [{plot(title)}.scales.x.min, {plot(title)}.scales.x.max]")


@pytest.mark.main_path
def test_searched_metric_is_first_and_sections_follow(wall):
    titles = wall.eval_on_selector_all(
        ".cards-grid > *", "(all) => all.map((one) => one.dataset.card ?? `# ${one.textContent}`)"
    )
    assert titles == ["loss", "accuracy", "# opt", "opt/norm"]
    dashes = wall.evaluate(
        "() => document.querySelector('.card.searched').card.plot.series.slice(1).map((one) => (one.dash ?? []).length)"
    )
    # Training is solid, validation dashed.
    assert sorted(dashes) == [0] * 4 + [2] * 4


@pytest.mark.main_path
def test_hidden_run_disappears_from_all_cards_and_stays_hidden(wall, search):
    name = f"Trial {search.trials[0]}"
    wall.get_by_role("button", name=f"Show {name}", exact=True).click()
    expect(card(wall, "loss")).to_have_attribute("data-lines", "6")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "3")
    wall.goto("/cluster")
    wall.go_back()
    expect(card(wall, "loss")).to_have_attribute("data-lines", "6")
    expect(wall.get_by_role("button", name=f"Show {name}", exact=True)).to_have_attribute(
        "aria-pressed", "false"
    )


@pytest.mark.main_path
def test_filter_shows_the_runs_that_match(wall, search):
    for text, count in (
        ("lr<0.25", 2),
        ("lr<=0.3 optimizer=adam", 3),
        ("label:asha", 4),
        ("val_loss>.45", 2),
        ("nothing", 0),
    ):
        wall.get_by_placeholder("lr<1e-2 label:asha").fill(text)
        expect(wall.locator(".runs li:not([hidden])")).to_have_count(count)
    wall.get_by_placeholder("lr<1e-2 label:asha").fill("lr=0.1")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "2")
    wall.reload()
    expect(card(wall, "loss")).to_have_attribute("data-lines", "2")


def test_best_run_is_first(wall, search):
    order = wall.eval_on_selector_all(".runs li", "(all) => all.map((one) => Number(one.dataset.run))")
    best = wall.eval_on_selector_all(".runs li .number", "(all) => all.map((one) => Number(one.textContent))")
    assert sorted(order) == search.trials
    assert best == sorted(best)


@pytest.mark.main_path
def test_zoom_is_shared_and_asks_the_master_again(wall):
    canvas = card(wall, "loss").locator(".u-over")
    box = canvas.bounding_box()
    with wall.expect_response(re.compile(r"/figures/lines\?.*start=")) as asked:
        wall.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
        wall.mouse.down()
        wall.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
        wall.mouse.up()
    assert asked.value.ok
    for title in ("loss", "accuracy"):
        wall.wait_for_function(f"() => {plot(title)}.scales.x.max < 2500")
    low, high = axis(wall)
    assert axis(wall, "accuracy") == [low, high]
    address = wall.url
    assert "range=" in address
    wall.get_by_role("button", name="Whole range").click()
    wall.wait_for_function("() => document.querySelector('.card.searched').card.plot.scales.x.max > 2900")
    # A sent link shows the same range.
    wall.goto(address)
    expect(card(wall, "loss").locator("canvas")).to_be_visible()
    wall.wait_for_function("() => document.querySelector('.card.searched').card.plot?.scales.x.max < 2500")
    assert axis(wall) == pytest.approx([low, high], rel=1e-4)


def test_double_click_shows_the_whole_range_again(wall):
    wall.goto(f"{wall.url.partition('?')[0]}?range=500~1500")
    canvas = card(wall, "loss").locator(".u-over")
    expect(canvas).to_be_visible()
    wall.wait_for_function("() => document.querySelector('.card.searched').card.plot?.scales.x.max < 1600")
    canvas.dblclick()
    wall.wait_for_function("() => document.querySelector('.card.searched').card.plot.scales.x.max > 2900")


def test_colour_of_a_run_is_the_same_on_every_page(wall, search):
    trial = search.trials[1]
    lines = "document.querySelector('.card.searched').card.lines"
    colour = f"() => {lines}.find((line) => line.trial === {trial}).color"
    first = wall.evaluate(colour)
    for address in (f"/trials/{trial}", f"/compare?trial={search.trials[0]}&trial={trial}"):
        wall.goto(address)
        expect(wall.locator(".card.searched canvas")).to_be_visible()
        assert wall.evaluate(colour) == first


@pytest.mark.main_path
def test_pointer_highlights_a_run_in_all_cards(wall, search):
    wall.locator(f".runs li[data-run='{search.trials[2]}']").hover()
    for title, own in (("loss", 2), ("accuracy", 1)):
        full = f"{plot(title)}.series.slice(1).filter((one) => one.alpha === 1)"
        wall.wait_for_function(f"() => {full}.length === {own}")


def test_groups_show_mean_and_deviation(wall):
    wall.locator(".runs [name=group]").select_option("label")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "3")
    mean = wall.evaluate("() => document.querySelector(\".card[data-card='accuracy']\").card.plot.data[1]")
    assert mean == pytest.approx([1 - 1 / n for n in range(1, 11)], rel=1e-4)
    wall.locator(".runs [name=group]").select_option("lr")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "12")


def test_pointer_highlights_the_group_of_a_run(wall, search):
    wall.locator(".runs [name=group]").select_option("lr")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "12")
    wall.locator(f".runs li[data-run='{search.trials[2]}']").hover()
    full = f"{plot('accuracy')}.series.slice(1).filter((one) => one.alpha === 1)"
    # The mean and the two edges of its band.
    wall.wait_for_function(f"() => {full}.length === 3")
    wall.wait_for_function(f"() => {full}[0].label.startsWith('lr=')")


def test_cards_draw_no_more_runs_than_they_have_room_for(page, site, search):
    def answer_for_small_cards(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "most": 3})

    page.route("**/figures/wall?**", answer_for_small_cards)
    page.goto(f"/experiments/{search.number}")
    expect(page.locator(".card.searched")).to_have_attribute("data-lines", "6")
    expect(page.locator("[data-run-count]")).to_have_text("4, the best 3 of 4 are drawn")
    page.locator("[name=filter]").fill("lr>=0.2")
    expect(page.locator("[data-run-count]")).to_have_text("3 of 4")
    # The runs that a filter leaves make room for others.
    lines = "document.querySelector('.card.searched').card.lines"
    left = [trial["id"] for trial in site.client.trials(search.number) if trial["hparams"]["lr"] >= 0.2]
    page.wait_for_function(f"() => {lines}.every((line) => {left}.includes(line.trial))")
    expect(page.locator(".card.searched")).to_have_attribute("data-lines", "6")


def test_filter_of_runs_is_that_of_tables_and_refuses_unknown_names(wall, search, site):
    runs = wall.locator("[data-runs] li:visible")
    expect(runs).to_have_count(4)
    rates = {trial["id"]: trial["hparams"]["lr"] for trial in site.client.trials(search.number)}
    refused = wall.locator("[data-runs]").get_by_role("alert")
    wall.locator("[name=filter]").fill("lr>=0.2")
    expect(runs).to_have_count(3)
    with wall.watch.forgiving("400"):
        wall.locator("[name=filter]").fill("lrr>=0.2")
        expect(refused).to_contain_text("Did you mean `lr`?")
    # Those that were found stay.
    expect(runs).to_have_count(3)
    wall.locator("[name=filter]").fill(f"lr>=0.2 id!={max(rates, key=rates.get)}")
    expect(runs).to_have_count(2)
    expect(refused).to_be_hidden()
    expect(wall.locator(".card.searched")).to_have_attribute("data-lines", "4")
    # An address with the filter draws nothing else in between.
    asked = []
    wall.on("request", lambda request: asked.append(request.url))
    wall.reload()
    expect(wall.locator(".card.searched")).to_have_attribute("data-lines", "4")
    expect(runs).to_have_count(2)
    drawn = [url for url in asked if "/figures/lines" in url]
    assert {url.count("trial=") for url in drawn} <= {0, 2}


def test_runs_are_coloured_by_a_hyperparameter(wall):
    wall.get_by_label("Colour").select_option("lr")
    expect(wall.locator("[data-bar]")).to_be_visible()
    colours = wall.evaluate(
        "() => document.querySelector('.card.searched').card.lines.map((line) => line.color)"
    )
    assert "rgb(68 1 84)" in colours
    assert "rgb(253 231 37)" in colours


def saved(page, title, tmp_path):
    """Return the files that the buttons of a card save, by their kinds."""
    shown = card(page, title)
    shown.hover()
    found = {}
    for name in ("CSV", "SVG", "PNG"):
        with page.expect_download() as started:
            shown.get_by_role("button", name=name).click()
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        found[name] = path.read_bytes()
    return found


def test_card_is_saved_as_table_drawing_and_picture(wall, tmp_path):
    found = saved(wall, "accuracy", tmp_path)
    rows = list(csv.reader(found["CSV"].decode().splitlines()))
    assert rows[0] == ["run", "metric", "batch", "value"]
    assert len(rows) == 41
    assert found["SVG"].count(b"<path") == 4
    assert found["PNG"].startswith(b"\x89PNG")


def test_files_of_a_grouped_card_have_means_and_deviations(wall, tmp_path):
    wall.locator(".runs [name=group]").select_option("label")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "6")
    found = saved(wall, "loss", tmp_path)
    rows = list(csv.reader(found["CSV"].decode().splitlines()))
    assert rows[0] == ["group", "metric", "batch", "mean", "deviation"]
    assert rows[1][:3] == ["asha", "training.loss", "300"]
    # Of 0.1, 0.2, 0.3 and 0.4, each plus 1.
    assert [float(value) for value in rows[1][3:]] == pytest.approx([1.25, 0.1118], abs=1e-4)
    assert {(row[0], row[1]) for row in rows[1:]} == {
        ("asha", "training.loss"),
        ("asha", "validation.val_loss"),
    }
    # Two means and their bands.
    assert found["SVG"].count(b"<path") == 4
    assert found["SVG"].count(b'fill-opacity="0.18"') == 2


def test_pinned_card_is_first_and_a_search_finds_cards(wall):
    shown = card(wall, "opt/norm")
    shown.scroll_into_view_if_needed()
    shown.hover()
    shown.get_by_role("button", name="Pin").click()
    first = wall.locator(".cards-grid > .card").first
    expect(first).to_have_attribute("data-card", "opt/norm")
    wall.get_by_placeholder("name of a metric").fill("acc")
    expect(wall.locator(".card:visible")).to_have_count(1)


def test_settings_form_keeps_the_address(wall):
    wall.get_by_label("log y").check()
    wall.get_by_label("Over").select_option("epochs")
    wall.locator("[name=smoothing]").fill("0.5")
    wall.wait_for_function(
        "() => document.querySelector('.card.searched').card.lines.some((line) => line.isRaw)"
    )
    assert axis(wall) == [1, 10]
    wall.reload()
    wall.wait_for_function(
        "() => document.querySelector('.card.searched')?.card.lines?.some((line) => line.isRaw)"
    )
    assert axis(wall) == [1, 10]
    assert (
        json.loads(
            wall.evaluate(
                "() => JSON.stringify(document.querySelector('.card.searched').card.plot.scales.y.distr)"
            )
        )
        == 3
    )


def test_card_that_cannot_be_updated_says_so(wall):
    wall.route("**/figures/lines?*", lambda route: route.fulfill(status=503, json={"message": "too busy"}))
    with wall.watch.forgiving("503"):
        wall.get_by_label("Over").select_option("epochs")
        told = card(wall, "accuracy").get_by_text("Not up to date: too busy")
        expect(told).to_be_visible()
    wall.unroute("**/figures/lines?*")
    wall.get_by_label("Over").select_option("batches")
    expect(told).to_be_hidden()


def test_card_without_an_answer_says_what_happens_next(page, search):
    page.route("**/figures/lines?*", lambda route: route.abort())
    with page.watch.forgiving("ERR_FAILED"):
        page.goto(f"/experiments/{search.number}")
        expect(card(page, "accuracy")).to_contain_text(
            "Could not be drawn: The master cannot be reached. The curves are drawn when it answers again."
        )
        # The other cards have asked, too: no question is left for later.
        page.close()


def over(page, title, part):
    """Move the pointer to a part of the width of a card."""
    box = card(page, title).locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2, steps=3)


def test_pointer_on_the_line_of_a_group_highlights_it_in_all_cards_and_its_runs(wall):
    wall.locator(".runs [name=group]").select_option("lr")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "24")
    over(wall, "loss", 0.5)
    full = f"{plot('accuracy')}.series.slice(1).filter((one) => one.alpha === 1)"
    # The mean and the two edges of its band.
    wall.wait_for_function(f"() => {full}.length === 3")
    # Of all runs, if they are one group.
    wall.locator(".runs [name=group]").select_option("label")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "6")
    over(wall, "loss", 0.6)
    expect(wall.locator(".runs li.lit")).to_have_count(4)


def test_metrics_and_system_metrics_over_time_share_axis_crosshair_and_zoom(page, timed):
    page.goto(f"/trials/{timed}?x=time")
    for title in ("loss", "CPU (%)"):
        expect(card(page, title).locator("canvas")).to_be_visible()
        assert axis(page, title) == pytest.approx([3600, 4 * 3600], abs=4)
        assert ticks(page, title, "x")[-1] == "4 h"
    card(page, "CPU (%)").scroll_into_view_if_needed()
    over(page, "CPU (%)", 0.35)
    expect(card(page, "loss").locator(".readout")).to_contain_text("2h 00m: ")
    page.mouse.down()
    over(page, "CPU (%)", 0.7)
    page.mouse.up()
    for title in ("loss", "CPU (%)"):
        page.wait_for_function(f"() => {plot(title)}.scales.x.max < 3.5 * 3600")
    assert axis(page) == axis(page, "CPU (%)")
    # Batches and times have nothing in common.
    page.get_by_label("Over").select_option("batches")
    page.wait_for_function(f"() => {plot('loss')}.scales.x.max === 400")
    page.wait_for_function(f"() => {plot('CPU (%)')}.scales.x.max > 3.9 * 3600")
    over(page, "CPU (%)", 0.5)
    expect(card(page, "CPU (%)").locator(".readout")).to_contain_text("h ")
    expect(card(page, "loss").locator(".readout")).to_be_empty()


def ticks(page, title, which):
    """Return the labels of an axis of a card."""
    found = page.evaluate(f"() => {plot(title)}.axes[{'xy'.index(which)}]._values")
    return [text for text in found if text]


def test_memory_and_disk_have_distinct_ticks_in_units_of_bytes_that_are_not_cut_off(page, timed):
    page.set_viewport_size({"width": 1440, "height": 2400})
    page.goto(f"/trials/{timed}")
    for title, unit in (("Memory of the trial", "MiB"), ("Disk", "MiB/s")):
        expect(card(page, title).locator("canvas")).to_be_visible()
        found = ticks(page, title, "y")
        assert len(found) == len(set(found)) >= 3
        assert all(text.endswith(f" {unit}") for text in found), found
        # Nothing is painted at the left edge of the canvas: no label begins beyond it.
        painted = page.evaluate(
            f"""() => {{
                const {{ ctx }} = {plot(title)};
                const {{ data }} = ctx.getImageData(0, 0, 2, ctx.canvas.height);
                return data.some((value) => value !== 0);
            }}"""
        )
        assert not painted, title
    over(page, "Memory of the trial", 0.5)
    expect(card(page, "Memory of the trial").locator(".readout")).to_contain_text("MiB")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([4.88e7, 4.89e7, 4.9e7, 4.91e7], ["4.88e+7", "4.89e+7", "4.9e+7", "4.91e+7"]),
        ([1e6, 2e6], ["1e+6", "2e+6"]),
        ([0, 0.0001, 0.00015], ["0", "1e-4", "1.5e-4"]),
        ([0, 0.5, 1], ["0", "0.5", "1"]),
        ([1000.001, 1000.002], ["1,000.001", "1,000.002"]),
    ],
)
def test_ticks_have_as_many_digits_as_make_them_differ(wall, values, texts):
    script = """async (values) => {
        const { numberTicks } = await import(document.querySelector("script[src*='wall']").src.replace("wall", "axis"));
        return numberTicks(values);
    }"""
    assert wall.evaluate(script, values) == texts


@pytest.mark.parametrize(
    ("last", "texts"),
    [
        (81, ["0", *(f"{second} s" for second in range(10, 90, 10))]),
        (1500, ["0", "5 min", "10 min", "15 min", "20 min", "25 min"]),
        (5 * 3600, ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (10 * 86400, ["0", "2 d", "4 d", "6 d", "8 d", "10 d"]),
    ],
    ids=["seconds", "minutes", "hours", "days"],
)
def test_ticks_of_times_are_readable(page, timed, last, texts):
    def answer(route):
        x = [last * part / 100 for part in range(101)]
        line = {"trial": timed, "metric": "training.loss", "isRaw": False, "y": x}
        route.fulfill(json={"x": x, "lines": [line], "total": 101})

    page.route("**/figures/lines?*", answer)
    page.set_viewport_size({"width": 560, "height": 900})
    page.goto(f"/trials/{timed}?x=time")
    expect(card(page, "loss").locator("canvas")).to_be_visible()
    assert ticks(page, "loss", "x") == texts


def test_other_groups_are_dotted(page, timed):
    page.goto(f"/trials/{timed}")
    expect(card(page, "loss").locator("canvas")).to_be_visible()
    dashes = page.evaluate(f"() => {plot('loss')}.series.slice(1).map((one) => [one.label, one.dash ?? []])")
    ratio = page.evaluate("() => devicePixelRatio")
    found = {label.split()[-2]: [length / ratio for length in dash] for label, dash in dashes}
    assert found == {"training": [], "validation": [7, 4], "test": [2, 3]}


def test_size_of_cards_is_chosen(wall):
    heights = {}
    for size in "SML":
        wall.get_by_role("radio", name=size, exact=True).check()
        expect(wall.locator(".cards-grid")).to_have_attribute("data-size", size.lower())
        heights[size] = card(wall, "accuracy").locator(".canvas").bounding_box()["height"]
        # The plot follows.
        wall.wait_for_function(f"() => {plot('accuracy')}.height === {heights[size]}")
    assert heights == {"S": 190, "M": 260, "L": 400}
    wall.reload()
    expect(wall.locator(".cards-grid")).to_have_attribute("data-size", "l")


def test_card_fills_the_screen_and_comes_back(wall):
    shown = card(wall, "accuracy")
    shown.hover()
    before = shown.bounding_box()["width"]
    shown.get_by_role("button", name="Full screen").click()
    wall.wait_for_function("() => document.fullscreenElement?.dataset.card === 'accuracy'")
    wall.wait_for_function(f"() => {plot('accuracy')}.width > {2 * before}")
    shown.get_by_role("button", name="Full screen").click()
    wall.wait_for_function("() => document.fullscreenElement === null")
    wall.wait_for_function(f"() => {plot('accuracy')}.width <= {before}")


def test_runs_of_the_list_have_the_searched_metric_as_sparkline(wall, search):
    drawn = wall.locator(".runs .spark path")
    expect(drawn).to_have_count(4)
    paths = drawn.evaluate_all("(all) => all.map((one) => one.getAttribute('d'))")
    for path in paths:
        places = [tuple(map(float, place.split())) for place in path[1:].split("L")]
        assert len(places) == 5
        # The metric falls, so that the line goes down, from left to right.
        assert places == sorted(places)


def alpha_at(page, title, x, y):
    """Return how opaque the canvas of a card is at a point given as values of its axes, from 0 to 255."""
    return page.evaluate(
        f"""([x, y]) => {{
            const plot = {plot(title)};
            const [left, top] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
            return plot.ctx.getImageData(Math.round(left), Math.round(top), 1, 1).data[3];
        }}""",
        [x, y],
    )


# The colours of the opaque pixels of a PNG file, and how many pixels have each.
_COLOURS = """async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
    const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
    pen.drawImage(image, 0, 0);
    const { data } = pen.getImageData(0, 0, image.width, image.height);
    const found = {};
    for (let at = 0; at < data.length; at += 4) {
        const name = data.slice(at, at + 3).join(" ");
        found[name] = (found[name] ?? 0) + 1;
    }
    return found;
}"""

# The colours of a legend as they are painted, by the names of the groups.
_LEGEND = """(list) => Object.fromEntries([...list.children].map((item) => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = getComputedStyle(item.querySelector(".swatch")).backgroundColor;
    pen.fillRect(0, 0, 1, 1);
    return [item.textContent, pen.getImageData(0, 0, 1, 1).data.slice(0, 3).join(" ")];
}))"""


def colours(page, png):
    """Return how many pixels of a PNG file have each colour."""
    return page.evaluate(_COLOURS, base64.b64encode(png).decode())


def test_band_of_a_group_is_painted(wall):
    wall.locator(".runs [name=group]").select_option("label")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "6")
    # Above the mean of the training losses at batch 1650, by half of their deviation: inside of the band.
    inside = alpha_at(wall, "loss", 1650, 0.25 + 0.5 * (1 / 5 + 1 / 6) + 0.056)
    assert 30 < inside < 80


def test_legend_names_the_groups_in_their_colours_and_is_saved(wall, tmp_path):
    wall.locator(".runs [name=group]").select_option("lr")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "12")
    legends = [card(wall, title).locator(".legend").evaluate(_LEGEND) for title in ("loss", "accuracy")]
    assert list(legends[0]) == ["lr=0.1", "lr=0.2", "lr=0.3", "lr=0.4"]
    assert legends[0] == legends[1]
    assert len(set(legends[0].values())) == 4
    found = saved(wall, "accuracy", tmp_path)
    drawn = colours(wall, found["PNG"])
    for name, colour in legends[0].items():
        # All four curves are the same here, so that only the last one is seen beside the legend.
        assert drawn.get(colour, 0) >= 60, name
        assert f">{name}</text>".encode() in found["SVG"]
    wall.locator(".runs [name=group]").select_option("")
    expect(card(wall, "accuracy").locator(".legend")).to_be_hidden()


def test_colour_of_a_group_is_the_same_in_cards_without_the_other_groups(wall, search):
    wall.locator(".runs [name=group]").select_option("lr")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "12")
    before = card(wall, "loss").locator(".legend").evaluate(_LEGEND)
    wall.get_by_placeholder("lr<1e-2 label:asha").fill("lr>=0.3")
    expect(card(wall, "accuracy")).to_have_attribute("data-lines", "6")
    after = card(wall, "loss").locator(".legend").evaluate(_LEGEND)
    assert after == {name: before[name] for name in ("lr=0.3", "lr=0.4")}


def highlighted(page, title):
    """Return the script for how many lines of a card are as bright as without a highlight."""
    return f"{plot(title)}.series.slice(1).filter((one) => one.alpha === 1).length"


def test_highlight_ends_when_the_pointer_leaves_a_card(wall):
    over(wall, "loss", 0.5)
    wall.wait_for_function(f"() => {highlighted(wall, 'accuracy')} === 1")
    box = card(wall, "loss").bounding_box()
    wall.mouse.move(box["x"] + box["width"] / 2, box["y"] - 20)
    wall.wait_for_function(f"() => {highlighted(wall, 'accuracy')} === 4")
    expect(card(wall, "loss").locator(".readout")).to_be_empty()
    expect(wall.locator(".runs li.lit")).to_have_count(0)


def test_saved_picture_does_not_depend_on_the_pointer(wall, search):
    pixels = """async () => {
        const wall = document.querySelector("script[src*='wall']").src;
        const { pngFile } = await import(wall.replace("wall.js", "card_files.js"));
        const { blob } = await pngFile(document.querySelector(".card.searched").card);
        return new Promise((resolve) => {
            const reader = new FileReader();
            reader.onload = () => resolve(reader.result);
            reader.readAsDataURL(blob);
        });
    }"""
    before = wall.evaluate(pixels)
    wall.locator(f".runs li[data-run='{search.trials[2]}']").hover()
    wall.wait_for_function(f"() => {highlighted(wall, 'loss')} === 2")
    assert wall.evaluate(pixels) == before
    # The highlight is still shown.
    assert wall.evaluate(f"() => {highlighted(wall, 'loss')}") == 2


@pytest.fixture(scope="module")
def many_cards(site) -> int:
    """A trial with seven cards, whose curves have 20 points."""
    config = "name: many\nsearcher: {name: single, metric: m0}\n"
    number = site.client.create(config, unmanaged=True)
    body = {"experimentId": number, "hparams": {}, "unmanaged": True}
    trial = site.client.post("/api/v1/trials", body)["trial"]["id"]
    site.client.post(f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": False})
    for batch in range(1, 21):
        report = {
            "trialId": trial,
            "trialRunId": 1,
            "stepsCompleted": 100 * batch,
            "metrics": {"avgMetrics": {f"m{index}": index + 1 / batch for index in range(7)}},
        }
        site.client.post(f"/api/v1/trials/{trial}/metrics", {"group": "validation", "metrics": report})
    return trial


def drag(page, title, first, last):
    """Choose a range of the axis of a card with the pointer."""
    over(page, title, first)
    page.mouse.down()
    over(page, title, last)
    page.mouse.up()


def test_zoom_requests_the_curves_of_each_card_once(page, many_cards):
    page.set_viewport_size({"width": 1440, "height": 2400})
    page.goto(f"/trials/{many_cards}")
    for index in range(7):
        expect(card(page, f"m{index}").locator("canvas")).to_be_visible()
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "start=" in request.url else None)
    drag(page, "m3", 0.25, 0.5)
    for index in range(7):
        page.wait_for_function(f"() => {plot(f'm{index}')}.scales.x.max < 1500")
    page.wait_for_load_state("networkidle")
    assert len(asked) == 7


def test_points_of_a_narrow_range_do_not_stay_on_the_whole_curve(page, many_cards):
    page.goto(f"/trials/{many_cards}")
    canvas = card(page, "m1").locator("canvas")
    expect(canvas).to_be_visible()
    picture = f"() => {plot('m1')}.ctx.canvas.toDataURL()"
    page.get_by_label("log y").check()
    page.wait_for_function(f"() => {plot('m1')}.scales.y.distr === 3")
    whole = page.evaluate(picture)
    # So few points are shown as rings.
    page.goto(f"/trials/{many_cards}?range=910~990")
    page.wait_for_function(f"() => {plot('m1')}?.scales.x.max < 1000")
    page.get_by_label("log y").check()
    page.get_by_role("button", name="Whole range").click()
    page.wait_for_function(f"() => {plot('m1')}.scales.x.max === 2000 && {plot('m1')}.data[0].length === 20")
    assert page.evaluate(picture) == whole
