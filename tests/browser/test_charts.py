"""Charts that a person makes: cards of expressions, with ranges and colours; and runs beside a baseline."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from browser.watch import accessibility_faults

_BATCHES = range(100, 1100, 100)


def _report(client, trial: int, group: str, batches: int, **metrics: float) -> None:
    report = {
        "trialId": trial,
        "trialRunId": 1,
        "stepsCompleted": batches,
        "metrics": {"avgMetrics": metrics},
    }
    client.post(f"/api/v1/trials/{trial}/metrics", {"group": group, "metrics": report})


@pytest.fixture(scope="module")
def runs(site) -> tuple[int, list[int]]:
    """An experiment and its trials: four learning rates, two optimizers, validation at half the batches of training."""
    number = site.client.create(
        "name: charts\nsearcher: {name: random, metric: val_loss, max_trials: 4}\n", unmanaged=True
    )
    trials = []
    for index in range(4):
        hparams = {"lr": 0.1 * (index + 1), "optimizer": ["adam", "sgd"][index % 2]}
        body = {"experimentId": number, "hparams": hparams, "unmanaged": True}
        trial = site.client.post("/api/v1/trials", body)["trial"]["id"]
        site.client.post(f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": False})
        trials.append(trial)
        for at in _BATCHES:
            _report(site.client, trial, "training", at, loss=100 / at + index, **{"opt/norm": at / 100})
            if at % 200 == 0:
                _report(site.client, trial, "validation", at, val_loss=100 / at + 1.5 * index)
    return number, trials


@pytest.fixture
def wall(page, runs):
    page.goto(f"/experiments/{runs[0]}")
    expect(card(page, "loss")).to_have_attribute("data-lines", "8")
    return page


def card(page, title):
    return page.locator(f".card[data-card={json.dumps(title)}]")


def plot(title):
    """Return the script for the uPlot of a card."""
    return f"document.querySelector(`.card[data-card={json.dumps(title)}]`)?.card.plot"


def make(page, **fields):
    """Make a card by the dialog; leave it open with what `fields` fill in."""
    page.get_by_role("button", name="New card").click()
    fill(page, **fields)


def fill(page, title=None, lines=None, low=None, high=None, log=None, color=None):
    dialog = page.get_by_role("dialog")
    for label, value in (("Title", title), ("Lines", lines), ("y from", low), ("y to", high)):
        if value is not None:
            dialog.get_by_label(label, exact=True).fill(value)
    if log is not None:
        dialog.get_by_label("log y").set_checked(log)
    if color is not None:
        dialog.get_by_label("Colour").select_option(color)


def save(page):
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def edit(page, title):
    card(page, title).hover()
    card(page, title).get_by_role("button", name="Edit").click()


def address_of(runs, *cards):
    return f"/experiments/{runs[0]}?own={quote(json.dumps(cards))}"


# How many pixels of a card's plot have each colour that is not transparent.
_COLOURS = """(title) => {
    const { canvas } = document.querySelector(`.card[data-card=${JSON.stringify(title)}]`).card.plot.ctx;
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const found = {};
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 255) continue;
        const name = data.slice(at, at + 3).join(" ");
        found[name] = (found[name] ?? 0) + 1;
    }
    return found;
}"""


@pytest.mark.main_path
def test_card_of_an_expression_shows_its_values_and_lives_in_the_address(wall, runs):
    make(wall, title="gap", lines="val_loss - loss")
    save(wall)
    expect(card(wall, "gap")).to_have_attribute("data-lines", "4")
    # The best run first; the axis has the batches at which both were reported.
    data = wall.evaluate(f"() => {plot('gap')}.data.map((column) => [...column])")
    assert data[0] == [200, 400, 600, 800, 1000]
    for index in range(4):
        assert data[index + 1] == pytest.approx([0.5 * index] * 5, abs=1e-5)
    assert json.loads(parse_qs(urlsplit(wall.url).query)["own"][0]) == [
        {"title": "gap", "lines": ["val_loss - loss"]}
    ]
    address = wall.url
    wall.goto("/cluster")
    wall.go_back()
    expect(card(wall, "gap")).to_have_attribute("data-lines", "4")
    wall.goto("/cluster")
    wall.goto(address)
    expect(card(wall, "gap")).to_have_attribute("data-lines", "4")
    # Behind the searched metric.
    titles = wall.locator(".cards-grid > *").evaluate_all("(all) => all.map((one) => one.dataset.card)")
    assert titles[:2] == ["loss", "gap"]


def test_several_lines_share_a_card_with_a_legend_of_their_dashes(wall):
    make(wall, title="both", lines="loss\nema(loss, .9)\n\nmax(val_loss, 2)\n")
    save(wall)
    expect(card(wall, "both")).to_have_attribute("data-lines", "12")
    dashes = wall.evaluate(f"() => {plot('both')}.series.slice(1).map((one) => (one.dash ?? [])[0] ?? 0)")
    assert [dashes.count(length) for length in set(dashes)] == [4, 4, 4]
    legend = card(wall, "both").locator(".legend li")
    assert legend.all_inner_texts() == ["loss", "ema(loss, .9)", "max(val_loss, 2)"]
    patterns = legend.locator("path").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('stroke-dasharray'))"
    )
    assert patterns == ["", "7 4", "2 3"]


def test_range_of_a_card_is_the_one_that_was_typed(wall):
    make(wall, title="ranged", lines="loss", low="-1", high="2")
    save(wall)
    wall.wait_for_function(f"() => {plot('ranged')} !== undefined && {plot('ranged')} !== null")
    scale = f"() => {{ const {{ min, max, distr }} = {plot('ranged')}.scales.y; return [min, max, distr]; }}"
    assert wall.evaluate(scale) == [-1, 2, 1]
    edit(wall, "ranged")
    expect(wall.get_by_role("dialog").get_by_label("y to")).to_have_value("2")
    fill(wall, low="", high="", log=True)
    save(wall)
    wall.wait_for_function(f"() => {plot('ranged')}.scales.y.distr === 3")
    # Only this card.
    assert wall.evaluate(f"() => {plot('loss')}.scales.y.distr") == 1
    edit(wall, "ranged")
    fill(wall, low="3", log=False)
    save(wall)
    wall.wait_for_function(f"() => {plot('ranged')}.scales.y.distr === 1")
    low, high, _ = wall.evaluate(scale)
    assert low == 3
    assert high > 4


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lines": "val_los - loss"}, "There is no metric 'val_los'. Did you mean `val_loss`?"),
        ({"lines": "loss\neval(loss)"}, "There is no function 'eval'."),
        ({"lines": "  \n "}, "A card needs a metric or an expression."),
        ({"lines": "loss", "low": "2", "high": "1"}, "The range ends at 1, which is not above its begin 2."),
        ({"lines": "loss", "low": "0", "log": True}, "both ends of the range are above 0."),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_the_dialog(wall, fields, text):
    make(wall, **fields)
    with wall.watch.forgiving("400"):
        wall.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(wall.get_by_role("dialog").get_by_role("alert")).to_contain_text(text)
    expect(wall.get_by_role("dialog").get_by_label("Lines")).to_have_value(fields["lines"])
    assert "own=" not in wall.url


def test_card_is_changed_removed_and_a_card_of_the_master_restored(wall):
    make(wall, lines="loss * 2")
    save(wall)
    expect(card(wall, "loss * 2")).to_be_visible()
    edit(wall, "loss * 2")
    fill(wall, title="double", lines="loss * 2\nloss * 3")
    save(wall)
    expect(card(wall, "loss * 2")).to_have_count(0)
    expect(card(wall, "double")).to_have_attribute("data-lines", "8")
    edit(wall, "double")
    wall.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(card(wall, "double")).to_have_count(0)
    assert "own=" not in wall.url
    # A card of the master begins with its metrics.
    edit(wall, "opt/norm")
    expect(wall.get_by_role("dialog").get_by_label("Lines")).to_have_value('"training.opt/norm"')
    fill(wall, lines='"opt/norm" ** 2')
    save(wall)
    wall.wait_for_function(f"() => {plot('opt/norm')}?.data[1].at(-1) === 100")
    expect(card(wall, "opt/norm")).to_have_count(1)
    edit(wall, "opt/norm")
    wall.get_by_role("dialog").get_by_role("button", name="Restore").click()
    wall.wait_for_function(f"() => {plot('opt/norm')}?.data[1].at(-1) === 10")


def test_colours_of_a_hyperparameter_are_named_and_painted(wall):
    make(wall, title="rates", lines="loss", color="lr")
    save(wall)
    legend = card(wall, "rates").locator(".legend")
    expect(legend).to_have_text("lr0.10.4")
    expect(legend.locator(".ramp")).to_be_visible()
    # The ends of viridis, which no other card has.
    painted = wall.evaluate(_COLOURS, "rates")
    assert min(painted.get(colour, 0) for colour in ("68 1 84", "253 231 37")) > 50
    assert "68 1 84" not in wall.evaluate(_COLOURS, "loss")
    make(wall, title="kinds", lines="loss", color="optimizer")
    save(wall)
    legend = card(wall, "kinds").locator(".legend")
    expect(legend.locator("li")).to_have_text(["optimizer:", "adam", "sgd"])
    swatches = legend.locator(".swatch").evaluate_all(
        """(all) => all.map((one) => {
            const pen = new OffscreenCanvas(1, 1).getContext("2d");
            pen.fillStyle = getComputedStyle(one).backgroundColor;
            pen.fillRect(0, 0, 1, 1);
            return pen.getImageData(0, 0, 1, 1).data.slice(0, 3).join(" ");
        })"""
    )
    painted = wall.evaluate(_COLOURS, "kinds")
    assert len(set(swatches)) == 2
    assert all(painted.get(colour, 0) > 50 for colour in swatches)


def test_lines_of_one_run_have_colours_of_their_own(page, runs):
    page.goto(
        f"/trials/{runs[1][0]}?own={quote(json.dumps([{'title': 'own', 'lines': ['loss', 'val_loss']}]))}"
    )
    expect(card(page, "own")).to_have_attribute("data-lines", "2")
    colours = page.evaluate(
        "() => document.querySelector('.card[data-card=own]').card.lines.map((line) => line.color)"
    )
    assert len(set(colours)) == 2


@pytest.mark.parametrize("value", ["{", "{}", "[1, null, {}]", '[{"title": "a", "lines": [1]}]', "null"])
def test_address_without_a_card_shows_the_cards_of_the_master(page, runs, value):
    page.goto(f"/experiments/{runs[0]}?own={quote(value)}")
    expect(card(page, "loss")).to_have_attribute("data-lines", "8")
    expect(page.locator(".card")).to_have_count(2)


def test_dialog_is_used_by_keyboard(wall):
    wall.get_by_role("button", name="New card").focus()
    wall.keyboard.press("Enter")
    dialog = wall.get_by_role("dialog")
    expect(dialog.get_by_label("Lines", exact=True)).to_be_focused()
    wall.keyboard.type("loss / 2")
    wall.keyboard.press("Tab")
    expect(dialog.get_by_label("Add a metric")).to_be_focused()
    dialog.get_by_label("Add a metric").select_option("val_loss")
    expect(dialog.get_by_label("Lines", exact=True)).to_have_value("loss / 2\nval_loss")
    for _ in range(4):
        wall.keyboard.press("Tab")
    expect(dialog.get_by_label("Colour")).to_be_focused()
    wall.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name="Back")).to_be_focused()
    wall.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(wall.get_by_role("button", name="New card")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_card_and_dialog_are_accessible_and_fit(page, runs, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(address_of(runs, {"title": "rates", "lines": ["loss", "ema(val_loss, .5)"], "color": "lr"}))
    # On a phone the cards are below the list of runs, and only cards near the view are drawn.
    card(page, "rates").scroll_into_view_if_needed()
    expect(card(page, "rates")).to_have_attribute("data-lines", "8")
    assert accessibility_faults(page) == []
    edit(page, "rates")
    dialog = page.get_by_role("dialog")
    box = dialog.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert accessibility_faults(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def flag(page, trial):
    return page.get_by_role("button", name=f"Baseline Trial {trial}", exact=True)


def over(page, title, batch, part=0.5):
    """Move the pointer to a batch of a card, and to a part of its height."""
    shown = card(page, title).locator(".u-over")
    shown.scroll_into_view_if_needed()
    box = shown.bounding_box()
    left = page.evaluate(f"(x) => {plot(title)}.valToPos(x, 'x')", batch)
    page.mouse.move(box["x"] + left, box["y"] + box["height"] * part, steps=3)


def told(page, title):
    """Return the rows of the tip of a card, each with its texts."""
    rows = card(page, title).locator(".tip:not([hidden]) li")
    return rows.evaluate_all(
        "(all) => all.map((row) => [...row.children].slice(1).map((cell) => cell.textContent))"
    )


@pytest.mark.main_path
def test_tip_orders_runs_by_value_with_differences_to_the_baseline(wall, runs):
    trials = runs[1]
    over(wall, "loss", 500)
    expect(card(wall, "loss").locator(".tip")).to_be_visible()
    assert all(row[2] == "" for row in told(wall, "loss"))
    wall.locator(f".runs li[data-run='{trials[1]}']").hover()
    flag(wall, trials[1]).click()
    expect(flag(wall, trials[1])).to_have_attribute("aria-pressed", "true")
    assert parse_qs(urlsplit(wall.url).query)["baseline"] == [str(trials[1])]
    over(wall, "loss", 500)
    expect(card(wall, "loss").locator(".tip")).to_be_visible()
    expect(card(wall, "loss").locator(".tip strong")).to_have_text("batch 500")
    rows = told(wall, "loss")
    values = [float(row[1]) for row in rows]
    assert values == sorted(values, reverse=True)
    training = [row for row in rows if "training" in row[0]]
    assert training == [
        [f"Trial {trials[index]} training loss", str(round(0.2 + index, 1)), text]
        for index, text in ((3, "+2"), (2, "+1"), (1, "baseline"), (0, "\u22121"))
    ]
    # The validation has its own baseline: at batch 400, 0.25 + 1.5 for each run.
    validation = {row[0].split()[1]: row[2] for row in rows if "validation" in row[0]}
    assert validation == dict(zip(map(str, trials), ("\u22121.5", "baseline", "+1.5", "+3"), strict=True))
    wall.mouse.move(5, 5)
    expect(card(wall, "loss").locator(".tip")).to_be_hidden()


# How many pixels of one column of a card's plot, at a value of x, have the colour of text, one after another.
_THICKNESS = """([title, x]) => {
    const { plot } = document.querySelector(`.card[data-card=${JSON.stringify(title)}]`).card;
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
    pen.fillRect(0, 0, 1, 1);
    const wanted = pen.getImageData(0, 0, 1, 1).data;
    const { canvas } = plot.ctx;
    const { data } = plot.ctx.getImageData(Math.round(plot.valToPos(x, "x", true)), 0, 1, canvas.height);
    let [longest, now] = [0, 0];
    for (let at = 0; at < data.length; at += 4) {
        now = [0, 1, 2, 3].every((part) => Math.abs(data[at + part] - wanted[part]) < 12) ? now + 1 : 0;
        longest = Math.max(longest, now);
    }
    return longest;
}"""


def test_baseline_is_painted_bold_in_the_colour_of_text_and_always(wall, runs):
    trial = runs[1][2]
    assert wall.evaluate(_THICKNESS, ["loss", 750]) == 0
    wall.locator(f".runs li[data-run='{trial}']").hover()
    flag(wall, trial).click()
    expect(card(wall, "loss")).to_have_attribute("data-lines", "8")
    bold = f"() => ({_THICKNESS})(['loss', 750]) >= 2"
    wall.wait_for_function(bold)
    # Above the other lines, also when the pointer highlights another run.
    wall.locator(f".runs li[data-run='{runs[1][0]}']").hover()
    wall.wait_for_function(f"() => {plot('loss')}.series.filter((one) => one.alpha < 1).length === 4")
    assert wall.evaluate(bold)
    assert wall.evaluate("() => document.querySelector('.card').card.lines.at(-1).trial") == trial
    swatch = wall.locator(f".runs li[data-run='{trial}'] .swatch")
    assert swatch.evaluate("(one) => one.style.background") == "var(--text)"
    # The filter leaves it out of the list, not out of the comparison.
    wall.locator("[name=filter]").fill("lr<0.15")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "4")
    wall.reload()
    expect(card(wall, "loss")).to_have_attribute("data-lines", "4")
    wall.wait_for_function(bold)
    wall.locator("[name=filter]").fill("")
    expect(card(wall, "loss")).to_have_attribute("data-lines", "8")
    flag(wall, trial).focus()
    wall.keyboard.press("Enter")
    wall.wait_for_function(f"() => ({_THICKNESS})(['loss', 750]) === 0")
    assert "baseline=" not in wall.url


def test_baseline_that_is_no_run_of_the_wall_changes_nothing(page, runs):
    page.goto(f"/experiments/{runs[0]}?baseline=999999")
    expect(card(page, "loss")).to_have_attribute("data-lines", "8")
    page.goto(f"/experiments/{runs[0]}?baseline=nonsense")
    expect(card(page, "loss")).to_have_attribute("data-lines", "8")


def test_groups_are_compared_with_that_of_the_baseline(page, runs):
    page.goto(f"/experiments/{runs[0]}?baseline={runs[1][0]}&group=optimizer")
    expect(card(page, "opt/norm")).to_have_attribute("data-lines", "6")
    over(page, "loss", 500)
    expect(card(page, "loss").locator(".tip")).to_be_visible()
    rows = {row[0]: row[2] for row in told(page, "loss")}
    # The means of the first and the third, and of the second and the fourth run.
    assert rows["optimizer=adam (2 runs) loss"] == "baseline"
    assert rows["optimizer=sgd (2 runs) loss"] == "+1"


def test_tip_of_many_lines_has_the_nearest_and_the_baseline(page, runs):
    lines = ["loss", "loss + 10", "loss + 20", "loss + 30"]
    page.goto(address_of(runs, {"title": "many", "lines": lines}) + f"&baseline={runs[1][0]}")
    expect(card(page, "many")).to_have_attribute("data-lines", "16")
    over(page, "many", 500, 0.1)
    expect(card(page, "many").locator(".tip")).to_contain_text("and 4 more")
    rows = told(page, "many")
    assert len(rows) == 12
    assert [row[2] for row in rows].count("baseline") == 4
    # The values at the top of the card, where the pointer is.
    assert rows[0][1] == "33.2"
    assert ["0.2", "baseline"] in [row[1:] for row in rows]
    assert ["2.2", "+2"] not in [row[1:] for row in rows]


def test_arrow_keys_move_the_crosshair(wall):
    canvas = card(wall, "opt/norm").locator(".canvas")
    canvas.focus()
    tip = card(wall, "opt/norm").locator(".tip")
    for key, place, value in (
        ("ArrowRight", "100", "1"),
        ("ArrowRight", "200", "2"),
        ("ArrowLeft", "100", "1"),
        ("ArrowLeft", "100", "1"),
    ):
        wall.keyboard.press(key)
        expect(tip.locator("strong")).to_have_text(f"batch {place}")
        expect(tip.locator("li .number").first).to_have_text(value)
    expect(card(wall, "opt/norm").locator(".readout")).to_contain_text("batch 100: ")
    wall.keyboard.press("Tab")
    expect(tip).to_be_hidden()


def test_tip_stays_on_a_narrow_page(page, runs):
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"/experiments/{runs[0]}?baseline={runs[1][1]}")
    card(page, "loss").scroll_into_view_if_needed()
    expect(card(page, "loss")).to_have_attribute("data-lines", "8")
    for batch in (200, 500, 600, 900):
        over(page, "loss", batch)
        tip = card(page, "loss").locator(".tip")
        expect(tip).to_be_visible()
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


_SVG = "{http://www.w3.org/2000/svg}"


def saved(page, title, kind, tmp_path):
    """Return the file that a button of a card saves."""
    card(page, title).hover()
    with page.expect_download() as started:
        card(page, title).get_by_role("button", name=kind).click()
    path = tmp_path / started.value.suggested_filename
    started.value.save_as(path)
    return path.read_bytes()


def drawn(page, title, tmp_path):
    """Return the drawing of a card, read as XML."""
    return ElementTree.fromstring(saved(page, title, "SVG", tmp_path))


def texts(svg):
    return ["".join(one.itertext()) for one in svg.iter(f"{_SVG}text")]


def scale_of(svg, axis):
    """Return the function from a place in a drawing to the value there, by the labels of an axis."""
    anchor, place = {"x": ("middle", "x"), "y": ("end", "y")}[axis]
    shift = {"x": 0, "y": -4}[axis]
    ticks = [
        (float(one.get(place)) + shift, float(one.text.replace(",", "")))
        for one in svg.iter(f"{_SVG}text")
        if one.get("text-anchor") == anchor and re.fullmatch(r"-?[\d.,]+", one.text)
    ]
    (from_place, from_value), (to_place, to_value) = ticks[0], ticks[-1]
    return lambda at: from_value + (at - from_place) * (to_value - from_value) / (to_place - from_place)


def curves_of(svg):
    """Return the points of each path of a drawing in its own units, by the title of the path."""
    x, y = scale_of(svg, "x"), scale_of(svg, "y")
    found = {}
    for path in svg.iter(f"{_SVG}path"):
        title = path.find(f"{_SVG}title")
        if title is not None:
            points = [point.split() for point in path.get("d").removeprefix("M").split("L")]
            found[title.text] = [(x(float(across)), y(float(up))) for across, up in points]
    return found


def test_drawing_has_the_curves_as_paths_at_their_values(wall, runs, tmp_path):
    svg = drawn(wall, "loss", tmp_path)
    found = curves_of(svg)
    assert len(found) == 8
    for index, trial in enumerate(runs[1]):
        points = found[f"Trial {trial} training loss"]
        assert [x for x, _ in points] == pytest.approx([*_BATCHES], abs=3)
        assert [y for _, y in points] == pytest.approx([100 / at + index for at in _BATCHES], abs=0.03)
        assert [x for x, _ in found[f"Trial {trial} validation val_loss"]] == pytest.approx(
            [*_BATCHES][1::2], abs=3
        )
    assert not [*svg.iter(f"{_SVG}image"), *svg.iter(f"{_SVG}foreignObject")]


def test_drawing_has_title_labels_legend_and_fonts(wall, runs, tmp_path):
    wall.locator(f".runs li[data-run='{runs[1][0]}']").hover()
    flag(wall, runs[1][0]).click()
    svg = drawn(wall, "loss", tmp_path)
    found = texts(svg)
    assert found[0] == "loss"
    assert {"batch", "loss, val_loss", "training loss", "validation val_loss"} < set(found)
    assert {f"Trial {runs[1][0]} (baseline)", *(f"Trial {trial}" for trial in runs[1][1:])} < set(found)
    assert svg.get("font-family").startswith("Helvetica")
    assert svg.get("font-size") == "11"
    # The styles of training and validation, in the legend and in the curves.
    lines = [one.get("stroke-dasharray") for one in svg.iter(f"{_SVG}line") if one.get("stroke-width") == "2"]
    assert lines == [None, "7 4"]
    dashes = [path.get("stroke-dasharray") for path in svg.iter(f"{_SVG}path")]
    assert sorted(map(str, dashes)) == ["7 4"] * 4 + ["None"] * 4
    bold = [path for path in svg.iter(f"{_SVG}path") if path.get("stroke-width") == "3.2"]
    assert [path.get("stroke") for path in bold] == ["rgb(27,31,36)"] * 2
    # Each run has the colour of its mark.
    marks = {one.get("fill") for one in svg.iter(f"{_SVG}rect") if one.get("width") == "10"}
    assert marks == {path.get("stroke") for path in svg.iter(f"{_SVG}path")}


def test_drawing_names_the_ends_of_a_scale_and_the_expressions(page, runs, tmp_path):
    page.goto(address_of(runs, {"title": "rates", "lines": ["loss", "ema(loss, .9)"], "color": "lr"}))
    expect(card(page, "rates")).to_have_attribute("data-lines", "8")
    svg = drawn(page, "rates", tmp_path)
    assert texts(svg)[1:5] == ["lr: 0.1", "0.4", "loss", "ema(loss, .9)"]
    stops = [stop.get("stop-color") for stop in svg.iter(f"{_SVG}stop")]
    assert (stops[0], stops[-1]) == ("rgb(68,1,84)", "rgb(253,231,37)")
    assert {"rgb(68,1,84)", "rgb(253,231,37)"} < {path.get("stroke") for path in svg.iter(f"{_SVG}path")}


# The colours of a picture in an area given as parts of its size, and how many pixels have each.
_PICTURE = """async ([base64, kind, left, top, right, bottom]) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([bytes], {type: kind}));
    await image.decode();
    const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
    pen.drawImage(image, 0, 0);
    const [x, y] = [Math.round(left * image.width), Math.round(top * image.height)];
    const { data } = pen.getImageData(x, y, Math.round(right * image.width) - x, Math.round(bottom * image.height) - y);
    const found = {};
    for (let at = 0; at < data.length; at += 4) {
        const name = data.slice(at, at + 3).join(" ");
        found[name] = (found[name] ?? 0) + 1;
    }
    return { width: image.width, height: image.height, found };
}"""


def picture(page, content, kind="image/png", area=(0, 0, 1, 1)):
    return page.evaluate(_PICTURE, [base64.b64encode(content).decode(), kind, *area])


def test_drawing_and_picture_have_the_shown_range_and_nothing_beside_it(page, runs, tmp_path):
    own = {"title": "zoomed", "lines": ["loss"], "low": 0, "high": 2, "color": "lr"}
    page.goto(address_of(runs, own) + "&range=250~650")
    expect(card(page, "zoomed")).to_have_attribute("data-lines", "4")
    svg = saved(page, "zoomed", "SVG", tmp_path)
    root = ElementTree.fromstring(svg)
    x, y = scale_of(root, "x"), scale_of(root, "y")
    area = root.find(f".//{_SVG}clipPath/{_SVG}rect")
    left, top, width, height = (float(area.get(name)) for name in ("x", "y", "width", "height"))
    assert [x(left), x(left + width)] == pytest.approx([250, 650], abs=3)
    assert [y(top + height), y(top)] == pytest.approx([0, 2], abs=0.03)
    size = [float(root.get(name)) for name in ("width", "height")]
    violet = "68 1 84"
    for content, kind in ((svg, "image/svg+xml"), (saved(page, "zoomed", "PNG", tmp_path), "image/png")):
        inside = (left / size[0], top / size[1], (left + width) / size[0], (top + height) / size[1])
        assert picture(page, content, kind, inside)["found"].get(violet, 0) > 100
        # The lines continue to the neighbours of the range, but are not painted there.
        for beside in ((0, inside[1], inside[0] - 0.005, 1), (inside[2] + 0.005, inside[1], 1, 1)):
            assert picture(page, content, kind, beside)["found"].get(violet, 0) == 0


def test_picture_is_large_and_on_white_in_the_dark_theme_too(page, runs, tmp_path):
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"/experiments/{runs[0]}?baseline={runs[1][3]}")
        expect(card(page, "loss")).to_have_attribute("data-lines", "8")
        found[scheme] = saved(page, "loss", "PNG", tmp_path)
    size = page.evaluate(f"() => [{plot('loss')}.over.clientWidth, {plot('loss')}.over.clientHeight]")
    light, dark = (picture(page, found[scheme]) for scheme in ("light", "dark"))
    assert light["width"] > 3 * size[0]
    assert light["height"] > 3 * size[1]
    for shown in (light["found"], dark["found"]):
        assert shown["255 255 255"] > 0.7 * light["width"] * light["height"]
        # The baseline is not white on white.
        assert shown["27 31 36"] > 3000
    common = {name for name, count in light["found"].items() if count > 1000}
    assert common == {name for name, count in dark["found"].items() if count > 1000}
    assert len(common) >= 5


def test_any_title_makes_valid_xml(page, runs, tmp_path):
    title = "<b>&\"'\u0001\u202e\ud83d\ude00" + "W" * 90
    page.goto(address_of(runs, {"title": title, "lines": ["loss"]}))
    shown = page.locator(".card").nth(1)
    expect(shown).to_have_attribute("data-lines", "4")
    shown.hover()
    with page.expect_download() as started:
        shown.get_by_role("button", name="SVG").click()
    path = tmp_path / "card.svg"
    started.value.save_as(path)
    svg = ElementTree.fromstring(path.read_bytes())
    assert svg.find(f"{_SVG}title").text == title.replace("\u0001", "").encode(
        "utf-16", "surrogatepass"
    ).decode("utf-16")
    assert texts(svg)[0].endswith("WW…")


def test_few_points_are_dots_in_a_drawing_and_gaps_stay(page, runs, site, tmp_path):
    number = site.client.create("name: gaps\nsearcher: {name: single, metric: loss}\n", unmanaged=True)
    body = {"experimentId": number, "hparams": {}, "unmanaged": True}
    trial = site.client.post("/api/v1/trials", body)["trial"]["id"]
    site.client.post(f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": False})
    for at, loss in enumerate([1, 2, "NaN", 3, "NaN", 1, 2]):
        _report(site.client, trial, "training", 10 * at, loss=loss, **({"few": 1} if at < 2 else {}))
    page.goto(f"/trials/{trial}")
    expect(card(page, "few")).to_have_attribute("data-lines", "1")
    svg = drawn(page, "loss", tmp_path)
    assert len([*svg.iter(f"{_SVG}path")]) == 2
    assert len([*svg.iter(f"{_SVG}circle")]) == 1
    svg = drawn(page, "few", tmp_path)
    assert len([*svg.iter(f"{_SVG}circle")]) == 2
