"""Reports of chosen cards, with text between them: what a reader without a network sees."""

from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.data import named_search
from browser.watch import accessibility_faults

HALF = "validation.loss - training.loss / 2"
# Where a point of a curve is on the page, as the axes of the figure say, and the colour and width of the curve.
POINT = """([figure, line, point]) => {
    const plot = document.querySelector(`[data-report-figure="${figure}"]`);
    const { xaxis, yaxis } = plot._fullLayout;
    const { x, y } = plot.data[line];
    const box = plot.getBoundingClientRect();
    const path = plot.querySelectorAll(".js-line")[line];
    const style = getComputedStyle(path);
    return {
        left: box.left + xaxis._offset + xaxis.d2p(x[point]) + scrollX,
        top: box.top + yaxis._offset + yaxis.d2p(y[point]) + scrollY,
        x: x[point], y: y[point], color: style.stroke, width: parseFloat(style.strokeWidth),
    };
}"""


@pytest.fixture(scope="module")
def search(site):
    return named_search(site, "plain")


def report(site, search, tmp_path, **body):
    """Return the address of a file with a report."""
    headers = {"Authorization": f"Bearer {site.client.token}"}
    answer = site.http.post(f"/experiments/{search.number}/report", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    path = tmp_path / "report.html"
    path.write_bytes(answer.content)
    return path.as_uri()


AROUND = """async ([png, places]) => {
    const bytes = Uint8Array.from(atob(png), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    return places.map(([left, top]) => Array.from(context.getImageData(left - 1, top - 3, 7, 7).data));
}"""


def painted_around(page, places):
    """Return the colours that are painted around places of the page; the browser decodes the picture."""
    picture = base64.b64encode(page.screenshot(full_page=True)).decode()
    blank = page.context.new_page()
    found = blank.evaluate(AROUND, [picture, places])
    blank.close()
    return [np.array(values).reshape(-1, 4)[:, :3] for values in found]


@pytest.mark.parametrize("width", [1440, 390])
def test_cards_and_text_are_where_the_writer_put_them(new_page, site, search, tmp_path, width):
    text = f"# Why\n\nbefore\n\n![Half](card:{HALF})\n\nbetween\n\n![](card:training.loss)\n\nafter"
    address = report(site, search, tmp_path, text=text, cards=[HALF, "validation.loss"])
    reader = new_page(viewport={"width": width, "height": 900})
    # No network at all.
    reader.context.set_offline(True)
    reader.goto(address)
    plots = reader.locator("[data-report-figure]")
    expect(plots).to_have_count(3)
    for plot in plots.all():
        expect(plot.locator(".main-svg").first).to_be_visible()
    shown = [
        reader.get_by_text("before", exact=True),
        plots.nth(0),
        reader.get_by_text("between", exact=True),
        plots.nth(1),
        reader.get_by_text("after", exact=True),
        reader.get_by_role("heading", name="Results"),
        plots.nth(2),
    ]
    boxes = [one.bounding_box() for one in shown]
    for above, below in itertools.pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"] + 1
    headings = reader.locator("figcaption h2").all_inner_texts()
    assert [text.strip("\u2068\u2069") for text in headings] == ["Half", "training.loss", "validation.loss"]
    widths = {trial["id"]: trial["hparams"]["width"] for trial in site.client.trials(search.number)}
    names = reader.evaluate("() => document.querySelector('.canvas').data.map((one) => one.name)")
    # Their first points: over the last another curve may lie.
    points = [reader.evaluate(POINT, ["figure-1", line, 0]) for line in range(len(names))]
    assert len(points) == 2
    painted = painted_around(reader, [[round(point["left"]), round(point["top"])] for point in points])
    for name, point, around in zip(names, points, painted, strict=True):
        assert (point["x"], point["y"]) == (10, pytest.approx(widths[int(name.split()[1])] / 2))
        color = np.array([int(part) for part in point["color"].strip("rgb()").split(",")])
        assert np.abs(around - color).max(axis=1).min() <= 24
    assert reader.evaluate("() => performance.getEntriesByType('resource').length") == 0
    assert (
        reader.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        <= 0
    )
    assert accessibility_faults(reader) == []


def test_view_of_a_wall_is_drawn_as_on_the_wall(new_page, page, site, search, tmp_path):
    first, second = search.trials
    own = json.dumps([{"title": "half", "lines": [HALF], "low": 0.1, "high": 100, "log": True}])
    settings = urlencode({"own": own, "baseline": second, "range": "15~45", "smoothing": 0.5})
    page.goto(f"/experiments/{search.number}?{settings}")
    expect(page.locator(".card canvas").first).to_be_visible()
    address = report(site, search, tmp_path, view=page.url, cards=["half"])
    reader = new_page()
    reader.context.set_offline(True)
    reader.goto(address)
    expect(reader.locator("[data-report-figure] .main-svg").first).to_be_visible()
    axes = reader.evaluate(
        "() => { const { xaxis, yaxis } = document.querySelector('.canvas')._fullLayout;"
        " return [xaxis.range, yaxis.type, yaxis.range]; }"
    )
    assert axes == [[15, 45], "log", [-1, 2]]
    lines = reader.evaluate(
        "() => document.querySelector('.canvas').data.map((one, index) => [one.name, one.opacity ?? 1,"
        " getComputedStyle(document.querySelectorAll('.canvas .js-line')[index]).strokeWidth])"
    )
    assert sorted(map(tuple, lines)) == sorted(
        [
            (f"Trial {first}", 0.25, "2px"),
            (f"Trial {first}", 1, "2px"),
            (f"Trial {second} (baseline)", 0.25, "4px"),
            (f"Trial {second} (baseline)", 1, "4px"),
        ]
    )
