"""The scatter plot of two columns of runs: on walls and on the page of a search."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.watch import accessibility_faults

_RATES = [0.1, 0.2, 0.3, 0.4, 0.5]
_WIDTHS = [8, 16, 8, 32, 16]
_LOSSES = [0.9, 0.5, 0.4, 0.6, 0.8]


@pytest.fixture(scope="module")
def runs(site) -> tuple[int, list[int]]:
    """An experiment and its trials, with two numbers and a text as hyperparameters; the last has no metric."""
    config = "name: scatter\nsearcher: {name: random, metric: val_loss, max_trials: 5}\n"
    number = site.client.create(config, unmanaged=True)
    trials = []
    for index, (lr, width) in enumerate(zip(_RATES, _WIDTHS, strict=True)):
        hparams = {"lr": lr, "width": width, "optimizer": ["adam", "sgd"][index % 2]}
        body = {"experimentId": number, "hparams": hparams, "unmanaged": True}
        trial = site.client.post("/api/v1/trials", body)["trial"]["id"]
        site.client.post(f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": False})
        trials.append(trial)
    for trial, loss, lr in zip(trials, _LOSSES[:4], _RATES, strict=False):
        metrics = {"avgMetrics": {"val_loss": loss, "latency": 10 * lr}}
        report = {"trialId": trial, "trialRunId": 1, "stepsCompleted": 100, "metrics": metrics}
        site.client.post(f"/api/v1/trials/{trial}/metrics", {"group": "validation", "metrics": report})
    return number, trials


@pytest.fixture
def wall(page, runs):
    """The page of the experiment with the plot open."""
    page.goto(f"/experiments/{runs[0]}")
    page.get_by_text("Scatter plot of the runs").click()
    expect(plot(page)).to_have_attribute("data-points", "4")
    return page


def plot(page):
    return page.locator("[data-scatter-plot]")


def choose(page, **chosen):
    for name, value in chosen.items():
        page.locator(f"[data-scatter] [name={name}]").select_option(value)


def points(page):
    """Return the points of the plot by the address to which they lead: their places, colours and names."""
    found = (
        plot(page)
        .locator("a")
        .evaluate_all(
            """(all) => all.map((link) => {
            const dot = link.querySelector("circle");
            const [x, y] = ["cx", "cy"].map((name) => Number(dot.getAttribute(name)));
            return [link.getAttribute("href"), { x, y, fill: dot.style.fill, front: dot.matches(".front"),
                name: link.getAttribute("aria-label"), title: dot.querySelector("title").textContent }];
        })"""
        )
    )
    return dict(found)


@pytest.mark.main_path
def test_points_are_at_their_values_and_named(wall, runs):
    choose(wall, across="lr", up="last latency", shade="width")
    expect(plot(wall).locator("svg")).to_have_attribute("aria-label", "last latency against lr of 4 trials")
    found = points(wall)
    assert [*found] == [
        f"/trials/{trial}" for trial in sorted(runs[1][:4], key=lambda trial: _LOSSES[runs[1].index(trial)])
    ]
    shown = [found[f"/trials/{trial}"] for trial in runs[1][:4]]
    # Equal steps of the values are equal steps of the places: to the right, and up.
    assert np.diff([one["x"] for one in shown]) == pytest.approx([shown[1]["x"] - shown[0]["x"]] * 3, abs=0.2)
    assert np.diff([one["y"] for one in shown]) == pytest.approx([shown[1]["y"] - shown[0]["y"]] * 3, abs=0.2)
    assert shown[0]["x"] + 100 < shown[3]["x"]
    assert shown[0]["y"] - 100 > shown[3]["y"]
    name = f"Trial {runs[1][1]}: lr 0.2, last latency 2, width 16"
    assert (shown[1]["name"], shown[1]["title"]) == (name, name)
    assert (shown[0]["fill"], shown[3]["fill"]) == ("rgb(68, 1, 84)", "rgb(253, 231, 37)")
    expect(wall.locator("[data-scatter] .legend")).to_have_text("width832")
    expect(wall.locator("[data-scatter] [role=status]")).to_have_text("1 trial has no value in both columns.")


def test_labels_of_an_axis_are_at_the_places_of_their_values(wall, runs):
    choose(wall, across="lr", up="last latency")
    labels = (
        plot(wall)
        .locator("text[text-anchor=end]")
        .evaluate_all(
            "(all) => all.map((one) => [Number(one.textContent), Number(one.getAttribute('y')) - 4])"
        )
    )
    values, places = zip(*labels, strict=True)
    slope, offset = np.polyfit(values, places, 1)
    for trial, lr in zip(runs[1][:4], _RATES, strict=False):
        assert points(wall)[f"/trials/{trial}"]["y"] == pytest.approx(slope * 10 * lr + offset, abs=0.5)


def test_texts_have_places_and_colours(wall, runs):
    choose(wall, across="optimizer", up="best val_loss", shade="optimizer")
    legend = wall.locator("[data-scatter] .legend li")
    expect(legend).to_have_text(["optimizer:", "adam", "sgd"])
    shown = [points(wall)[f"/trials/{trial}"] for trial in runs[1][:4]]
    assert shown[0]["x"] == shown[2]["x"] < shown[1]["x"] == shown[3]["x"]
    assert shown[0]["fill"] == shown[2]["fill"] != shown[1]["fill"]


def test_settings_are_in_the_address_and_a_point_leads_to_its_trial(wall, runs):
    choose(wall, across="width", up="last latency", shade="lr")
    query = parse_qs(urlsplit(wall.url).query)
    assert (query["across"], query["up"], query["shade"]) == (["width"], ["last latency"], ["lr"])
    wall.reload()
    expect(plot(wall)).to_have_attribute("data-points", "4")
    expect(wall.locator("[data-scatter] [name=across]")).to_have_value("width")
    plot(wall).get_by_role("link", name=f"Trial {runs[1][2]}: width 8").focus()
    wall.keyboard.press("Enter")
    expect(wall).to_have_url(re.compile(f"/trials/{runs[1][2]}$"))
    wall.go_back()
    expect(plot(wall).locator("svg")).to_have_attribute(
        "aria-label", "last latency against width of 4 trials"
    )


def test_filter_and_eyes_choose_the_points(wall, runs):
    wall.locator("[name=filter]").fill("lr<=0.3")
    expect(plot(wall)).to_have_attribute("data-points", "3")
    wall.get_by_role("button", name=f"Show Trial {runs[1][0]}", exact=True).click()
    expect(plot(wall)).to_have_attribute("data-points", "2")


def test_front_has_the_trials_that_no_other_beats(page, runs):
    page.goto(f"/experiments/{runs[0]}/search?across=last+latency&up=best+val_loss&draw=front")
    told = page.locator("[data-scatter] [role=status]")
    # Latencies 1, 2, 3, 4 with losses 0.9, 0.5, 0.4, 0.6.
    expect(told).to_have_text("3 of 4 trials are on the front.")
    found = points(page)
    front = {int(address.split("/")[-1]) for address, point in found.items() if point["front"]}
    assert front == set(runs[1][:3])
    assert all(point["name"].endswith(", on the front") == point["front"] for point in found.values())
    path = plot(page).locator(".front-line").get_attribute("d")
    # From left to right it is first at the height of the worse.
    first, second = found[f"/trials/{runs[1][0]}"], found[f"/trials/{runs[1][1]}"]
    assert path.startswith(f"M{first['x']:.0f}"[:3])
    assert [float(part) for part in re.findall(r"[\d.]+", path)][:4] == pytest.approx(
        [first["x"], first["y"], second["x"], second["y"]], abs=0.1
    )
    assert re.sub(r"[\d. ]+", "", path) == "MHVHV"
    scatter = page.locator("[data-scatter]")
    scatter.get_by_label("Better across").select_option("larger")
    expect(told).to_have_text("2 of 4 trials are on the front.")
    scatter.get_by_label("Better up").select_option("larger")
    expect(told).to_have_text("2 of 4 trials are on the front.")
    assert "across_better=larger" in page.url
    choose(page, draw="")
    expect(scatter.get_by_label("Better up")).to_be_hidden()
    expect(plot(page).locator(".front-line")).to_have_count(0)


def scripts(body):
    """Return the value of a script that has what the module of scatter plots exports."""
    return f"""async (given) => {{
        const address = document.querySelector("script[src*='/wall.js'], script[src*='wall']").src;
        const {{ interpolated, paretoFront }} = await import(address.replace("wall.js", "scatter.js"));
        {body}
    }}"""


@pytest.mark.parametrize("x_better", ["", "larger"])
@pytest.mark.parametrize("y_better", ["", "larger"])
def test_front_is_the_one_of_all_comparisons(wall, x_better, y_better):
    random = np.random.default_rng(3)
    # Few different values, so that some are equal.
    values = random.integers(0, 8, (60, 2)).tolist()
    script = scripts(
        """const points = given[0].map(([x, y]) => ({x, y}));
        return paretoFront(points, given[1], given[2]).map(({x, y}) => [x, y]);"""
    )
    found = wall.evaluate(script, [values, x_better, y_better])
    costs = np.array(values) * [-1 if better else 1 for better in (x_better, y_better)]
    is_beaten = [bool(((costs <= one).all(axis=1) & (costs < one).any(axis=1)).any()) for one in costs]
    expected = [value for value, beaten in zip(values, is_beaten, strict=True) if not beaten]
    assert sorted(found) == sorted(expected)


def test_value_between_points_is_the_weighted_one(wall):
    random = np.random.default_rng(4)
    known = random.random((9, 3))
    places = [*random.random((20, 2)).tolist(), known[2, :2].tolist()]
    script = scripts(
        """const points = given[0].map(([x, y, z]) => ({x, y, z}));
        return given[1].map(([x, y]) => interpolated(points, x, y));"""
    )
    found = wall.evaluate(script, [known.tolist(), places])
    for place, value in zip(places[:-1], found[:-1], strict=True):
        weights = 1 / np.linalg.norm(known[:, :2] - place, axis=1) ** 3
        assert value == pytest.approx(float((weights * known[:, 2]).sum() / weights.sum()))
    assert found[-1] == known[2, 2]


# The colour of the part beneath each point.
_BENEATH = """(all) => all.map((dot) => {
    const [x, y] = ["cx", "cy"].map((name) => Number(dot.getAttribute(name)));
    const cells = [...dot.ownerSVGElement.querySelectorAll(".cell")];
    const number = (cell, name) => Number(cell.getAttribute(name));
    const found = cells.find((cell) => number(cell, "x") <= x && x < number(cell, "x") + number(cell, "width")
        && number(cell, "y") <= y && y < number(cell, "y") + number(cell, "height"));
    return found.style.fill;
})"""


def test_contours_have_the_values_of_the_points_and_are_painted(page, runs):
    page.goto(f"/experiments/{runs[0]}/search?across=lr&up=width&shade=best+val_loss&draw=contour")
    expect(plot(page).locator(".cell").first).to_be_attached()
    beneath = plot(page).locator("circle").evaluate_all(_BENEATH)
    fills = plot(page).locator("circle").evaluate_all("(all) => all.map((dot) => dot.style.fill)")
    numbers = lambda colour: np.array([int(part) for part in re.findall(r"\d+", colour)])  # noqa: E731
    known = [(cell, point) for cell, point in zip(beneath, fills, strict=True) if point.startswith("rgb")]
    # The trial without a metric is grey.
    assert len(known) == 4
    for cell, point in known:
        # A band is a tenth of the scale.
        assert np.abs(numbers(cell) - numbers(point)).max() < 40
    assert len(set(beneath)) >= 3
    choose(page, shade="optimizer")
    expect(page.locator("[data-scatter] [role=status]")).to_have_text(
        "Contours need a column of numbers to shade by."
    )
    expect(plot(page).locator(".cell")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("place", ["", "/search"])
def test_plot_is_accessible_and_fits(page, runs, place, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"/experiments/{runs[0]}{place}?across=lr&up=width&shade=best+val_loss&draw=contour")
    plot(page).scroll_into_view_if_needed()
    expect(plot(page)).to_have_attribute("data-points", "5")
    assert accessibility_faults(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_comparison_has_the_plot(page, runs):
    page.goto("/compare?" + "&".join(f"trial={trial}" for trial in runs[1]) + "&across=lr")
    expect(plot(page)).to_have_attribute("data-points", "4")
