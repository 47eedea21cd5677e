"""Reports of chosen cards, with text between them: what a reader without a network sees."""

from __future__ import annotations

import base64
import itertools
import json
import re
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.data import named_search
from browser.watch import accessibility_faults

HALF = "validation.loss - training.loss / 2"
# Where a point of a curve is on the page, as the axes of the card say, and the colour of the curve.
POINT = """([figure, line, point]) => {
    const { plot, lines } = document.querySelector(`[data-report-figure="${figure}"] .card`).card;
    const [x, y] = [plot.data[0][point], plot.data[line + 1][point]];
    const box = plot.over.getBoundingClientRect();
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = lines[line].color;
    pen.fillRect(0, 0, 1, 1);
    return {
        left: box.left + plot.valToPos(x, "x") + scrollX,
        top: box.top + plot.valToPos(y, "y") + scrollY,
        x, y, color: Array.from(pen.getImageData(0, 0, 1, 1).data.slice(0, 3)),
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
        expect(plot.locator("canvas").first).to_be_visible()
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
    names = reader.evaluate("() => document.querySelector('.card').card.lines.map((one) => one.label)")
    # Their first points: over the last another curve may lie.
    points = [reader.evaluate(POINT, ["figure-1", line, 0]) for line in range(len(names))]
    assert len(points) == 2
    painted = painted_around(reader, [[round(point["left"]), round(point["top"])] for point in points])
    for name, point, around in zip(names, points, painted, strict=True):
        assert (point["x"], point["y"]) == (10, pytest.approx(widths[int(name.split()[1])] / 2))
        assert np.abs(around - np.array(point["color"])).max(axis=1).min() <= 24
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
    expect(reader.locator(".card canvas").first).to_be_visible()
    scales = reader.evaluate(
        "() => { const { x, y } = document.querySelector('.card').card.plot.scales;"
        " return [[x.min, x.max], y.distr, [y.min, y.max]]; }"
    )
    assert scales == [[15, 45], 3, [0.1, 100]]
    lines = reader.evaluate(
        "() => { const { plot, lines } = document.querySelector('.card').card;"
        " return lines.map(({ trial }, at) => [trial, plot.series[at + 1].alpha, plot.series[at + 1].width]); }"
    )
    assert sorted(map(tuple, lines)) == sorted(
        [(first, 0.3, 1), (first, 1, 1.6), (second, 0.3, 1), (second, 1, 3.2)]
    )
    legend = reader.locator(".card .legend li").all_inner_texts()
    assert sorted(legend) == sorted([f"Trial {first}", f"Trial {second} (baseline)"])


def test_cards_of_a_report_tell_values_zoom_and_are_saved(new_page, site, search, tmp_path):
    address = report(site, search, tmp_path, cards=["training.loss"])
    reader = new_page(viewport={"width": 1000, "height": 800})
    reader.context.set_offline(True)
    reader.goto(address)
    card = reader.locator(".card")
    over = card.locator(".u-over")
    box = over.bounding_box()
    middle = box["y"] + box["height"] / 2
    over.hover()
    expect(card.locator(".tip li")).to_have_count(2)
    expect(card.locator(".tip")).to_contain_text(f"Trial {search.trials[0]}")
    expect(card.locator("output")).to_contain_text("batch ")
    reader.mouse.move(box["x"] + box["width"] / 4, middle)
    reader.mouse.down()
    reader.mouse.move(box["x"] + box["width"] / 2, middle)
    reader.mouse.up()
    shown = (
        "() => { const { min, max } = document.querySelector('.card').card.plot.scales.x; return max - min; }"
    )
    first, last = reader.evaluate("() => { const [x] = document.querySelector('.card').card.plot.data;"
                                  " return [x[0], x.at(-1)]; }")  # fmt: skip
    assert reader.evaluate(shown) == pytest.approx((last - first) / 4, rel=0.02)
    over.dblclick()
    assert reader.evaluate(shown) == last - first
    for kind in ("PNG", "SVG", "CSV"):
        with reader.expect_download() as started:
            card.get_by_role("button", name=kind).click()
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        assert path.name == f"training.loss.{kind.lower()}"
        assert path.stat().st_size > 200
    assert (tmp_path / "training.loss.csv").read_text().startswith("run,metric,batch,value\n")
    expect(card.get_by_role("button", name="Pin")).to_have_count(0)
    expect(card.get_by_role("button", name="Edit")).to_have_count(0)


def test_trials_of_a_report_are_drawn_at_their_rungs(new_page, site, search, tmp_path):
    report(site, search, tmp_path, cards=["training.loss"])
    path = tmp_path / "report.html"
    results = [
        {"bracket": bracket, "length": length, "id": 10 * bracket + length, "value": value}
        for bracket, length, value in ((1, 1, 0.5), (1, 4, 0.25), (2, 4, 0.75), (2, 16, 0.5))
    ]
    rungs = json.dumps({"rungs": {"metric": "loss", "unit": "epochs", "results": results}})
    text = re.sub(r'(id="figure-1">).*?(</script>)', rf"\g<1>{rungs}\g<2>", path.read_text(), flags=re.DOTALL)
    path.write_text(text)
    reader = new_page()
    reader.goto(path.as_uri())
    dots = reader.locator(".point")
    expect(dots.locator("title")).to_have_text(
        [f"Trial {one['id']}: {one['value']} at {one['length']} epochs" for one in results]
    )
    (x1, y1), (x4, y4), (other_x, other_y), (x16, y16) = dots.evaluate_all(
        "(all) => all.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])"
    )
    # Logarithmic, and larger values are above.
    assert x4 - x1 == pytest.approx(x16 - x4, abs=0.2)
    assert (x4, y1) == (other_x, y16)
    assert y4 - y1 == pytest.approx(y1 - other_y, abs=0.2)
    assert y4 > y1
    colors = dots.evaluate_all("(all) => all.map((one) => one.style.fill)")
    assert colors[0] == colors[1] != colors[2] == colors[3]
    expect(reader.locator(".legend li")).to_have_text(["bracket 1", "bracket 2"])
    expect(reader.locator(".rule + .tick").nth(1)).to_have_text("4")
