"""The model of a trial as people look at it: boxes and connections where they should be, and nothing executes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from browser.watch import accessibility_faults
from det_keras.client import Session
from det_keras.core.backend.detached import start_run

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
BOXES = """() => Object.fromEntries([...document.querySelectorAll('.graph [data-path]')].map((box) => {
  const { x, y, width, height } = box.querySelector('rect').getBoundingClientRect();
  return [box.dataset.path, { left: x, right: x + width, top: y, bottom: y + height, middle: x + width / 2 }];
}))"""
# Begin and end of each connection, and points on its way, on the screen.
EDGES = """() => [...document.querySelectorAll('.graph .edge')].map((edge) => {
  const line = edge.querySelector('.line'), matrix = line.getScreenCTM(), length = line.getTotalLength();
  const at = (part) => line.getPointAtLength(part * length).matrixTransform(matrix);
  const points = Array.from({ length: 41 }, (_, index) => at(index / 40)).map(({ x, y }) => [x, y]);
  return { from: edge.dataset.from, to: edge.dataset.to, points };
})"""


def layer(name, *inputs, **changes):
    entry = {
        "name": name, "class": "Dense", "shapes": [[None, 1000]], "dtype": "float32", "trainable": 1200, "frozen": 34,
        "inputs": list(inputs),
    }  # fmt: skip
    return {**entry, **changes}


def model(*layers, kind="functional", **changes):
    def count(entries):
        return sum(1 + count(entry.get("layers", [])) for entry in entries)

    record = {
        "name": "net", "class": "Functional", "kind": kind, "trainable": 1234567, "frozen": 89, "bytes": 4938624,
        "count": count(layers), "isCut": False, "layers": list(layers),
    }  # fmt: skip
    return {**record, **changes}


BRANCHES = model(
    layer("in"),
    layer("left", 0),
    layer("right", 0),
    layer("deep", 2),
    layer("merge", 1, 3, 0),
    layer("out", 4),
)
NESTED = model(
    layer("in"),
    layer("block", 0, kind="functional", layers=[layer("first"), layer("second", 0), layer("sum", 1, 0)]),
    layer("out", 1),
)


@pytest.fixture
def show(site, page):
    """Return a function that opens the page of a trial with a model."""
    session = Session(site.running.url, site.home.token_file.read_text().strip())
    config = "name: model\nsearcher: {name: single, metric: loss}\n"
    experiment = session.api.experiments.create_unmanaged(config, None)["experiment"]
    trial = start_run(session, experiment["id"], {}, None).trial_id

    def report(record):
        session.api.trials.report_provenance(trial, {"model": record})

    def open_page(record, at=page):
        report(record)
        at.goto(f"/trials/{trial}")
        expect(at.get_by_role("heading", name="Model")).to_be_visible()
        return at.locator("#model")

    open_page.report = report
    open_page.trial = trial
    open_page.api = session.api
    yield open_page
    session.close()


def overlap(a, b):
    return (
        a["left"] < b["right"]
        and b["left"] < a["right"]
        and a["top"] < b["bottom"]
        and b["top"] < a["bottom"]
    )


def check_connections(page, expected):
    """Check that each connection leads from the bottom of its source to the top of its target, and through no box."""
    boxes, edges = page.evaluate(BOXES), page.evaluate(EDGES)
    assert {(edge["from"], edge["to"]) for edge in edges} == set(expected)
    for edge in edges:
        source, target = boxes[edge["from"]], boxes[edge["to"]]
        begin, end = edge["points"][0], edge["points"][-1]
        assert begin == pytest.approx([source["middle"], source["bottom"]], abs=1)
        assert end == pytest.approx([target["middle"], target["top"]], abs=1)
        # Groups around both ends are passed.
        around = {path for path in boxes if edge["from"].startswith(f"{path}/")}
        for path, box in boxes.items():
            if path in around or path.startswith((f"{edge['from']}/", f"{edge['to']}/")):
                continue
            inside = [
                (x, y)
                for x, y in edge["points"]
                if box["left"] + 1 < x < box["right"] - 1 and box["top"] + 1 < y < box["bottom"] - 1
            ]
            assert inside == [], (edge["from"], edge["to"], path)
    return boxes


@pytest.mark.main_path
def test_sequential_model_is_a_column(page, show):
    record = model(layer("a"), layer("b", 0), layer("c", 1), kind="sequential")
    show(record)
    boxes = check_connections(page, [("0", "1"), ("1", "2")])
    assert boxes["0"]["bottom"] < boxes["1"]["top"]
    assert boxes["1"]["bottom"] < boxes["2"]["top"]
    assert len({box["middle"] for box in boxes.values()}) == 1


def test_layers_are_below_all_that_they_receive_from(page, show):
    show(BRANCHES)
    edges = [
        (str(source), str(index))
        for index, each in enumerate(BRANCHES["layers"])
        for source in each["inputs"]
    ]
    boxes = check_connections(page, edges)
    # By the longest path: a branch of two layers makes place for it, and both branches begin side by side.
    assert boxes["1"]["top"] == boxes["2"]["top"]
    assert boxes["2"]["bottom"] < boxes["3"]["top"]
    assert boxes["3"]["bottom"] < boxes["4"]["top"]
    names = sorted(boxes)
    assert not any(overlap(boxes[a], boxes[b]) for a in names for b in names if a < b)


def test_subclassed_model_is_a_column_without_connections(page, show):
    show(model(layer("a"), layer("b"), kind="layers"))
    boxes = check_connections(page, [])
    assert boxes["0"]["bottom"] < boxes["1"]["top"]


def test_layer_that_is_called_twice_has_one_box_and_a_connection_beside_it(page, show):
    show(model(layer("in"), layer("twice", 0, 1), layer("out", 1)))
    boxes, edges = page.evaluate(BOXES), page.evaluate(EDGES)
    own = next(edge for edge in edges if edge["from"] == edge["to"] == "1")
    assert max(x for x, _ in own["points"]) > boxes["1"]["right"] + 5
    assert own["points"][-1][0] == pytest.approx(boxes["1"]["right"], abs=1)


def test_group_opens_and_closes_by_mouse_and_keyboard(page, show):
    section = show(NESTED)
    inner = [("1/0", "1/1"), ("1/1", "1/2"), ("1/0", "1/2")]
    boxes = check_connections(page, [("0", "1"), ("1", "2"), *inner])
    for path in ("1/0", "1/1", "1/2"):
        assert boxes["1"]["left"] < boxes[path]["left"]
        assert boxes[path]["right"] < boxes["1"]["right"]
        assert boxes["1"]["top"] < boxes[path]["top"]
        assert boxes[path]["bottom"] < boxes["1"]["bottom"]
    button = section.get_by_role("button", name="block, Dense, 3 layers")
    expect(button).to_have_attribute("aria-expanded", "true")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(button).to_be_focused()
    check_connections(page, [("0", "1"), ("1", "2")])
    page.keyboard.press(" ")
    expect(button).to_have_attribute("aria-expanded", "true")
    button.click()
    expect(button).to_have_attribute("aria-expanded", "false")
    section.get_by_role("button", name="Open all groups").click()
    expect(button).to_have_attribute("aria-expanded", "true")
    section.get_by_role("button", name="Close all groups").click()
    expect(button).to_have_attribute("aria-expanded", "false")


def test_totals_and_table_say_the_same_in_words(page, show):
    section = show(NESTED)
    facts = dict(section.locator(".facts > div").evaluate_all(
        "(all) => all.map((one) => [one.querySelector('dt').textContent, one.querySelector('dd').textContent])"
    ))  # fmt: skip
    assert facts == {
        "Functional": "net", "Layers": "6", "Parameters": "1,234,656", "Trainable": "1,234,567", "Not trainable": "89",
        "Weights": "4.7MB",
    }  # fmt: skip
    rows = section.locator("tbody tr").evaluate_all(
        "(all) => all.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    assert rows[0] == ["in", "Dense", "(None, 1000)", "1,234", "34", "float32", ""]
    assert [row[0] for row in rows] == ["in", "block", "└ first", "└ second", "└ sum", "out"]
    assert [row[-1] for row in rows] == ["", "in", "", "first", "second, first", "block"]


def test_model_appears_and_changes_without_a_reload(page, show):
    page.goto(f"/trials/{show.trial}")
    expect(page.get_by_role("heading", name="Provenance")).to_be_visible()
    expect(page.locator("#model")).to_be_hidden()
    for record, count in ((BRANCHES, 6), (model(layer("a"), kind="layers"), 1)):
        show.report(record)
        # The page looks again with the next event of the trial.
        show.api.trials.report_progress(show.trial, count / 10)
        expect(page.locator(".graph .layer")).to_have_count(count)


def test_big_model_is_folded_and_scrolls_in_its_own_box(page, show):
    section = show(model(*(layer(f"layer_{index}", *[index - 1][: bool(index)]) for index in range(400))))
    details = section.locator("details")
    assert details.get_attribute("open") is None
    details.locator("summary").click()
    graph = section.get_by_role("region", name="Graph of the layers")
    expect(graph).to_be_visible()
    assert graph.evaluate("(it) => it.scrollHeight > it.clientHeight && it.clientHeight <= innerHeight")
    table = section.get_by_role("region", name="Table of the layers")
    assert table.evaluate("(it) => it.scrollHeight > it.clientHeight && it.clientHeight <= innerHeight")


def test_nothing_executes_and_names_are_shown_as_they_are(page, show):
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    evil = {"name": SCRIPT, "class": SCRIPT, "dtype": SCRIPT}
    section = show(
        model(
            layer(SCRIPT, **{"class": SCRIPT, "dtype": SCRIPT}),
            {**layer("x", 0, layers=[{**layer("y"), **evil}], kind="functional"), **evil},
            layer("W" * 200, 1),
            layer("\u202e\u05d0\u05d1", 2),
            **evil,
        )
    )
    expect(section.locator("tbody tr").first.locator("bdi")).to_have_text(SCRIPT)
    expect(section.locator(".graph text.name").first).to_have_text(re.compile("<script>alert"))
    assert page.locator("main script, main [onload], main [onerror], main img[src=x]").count() == 0
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    # No text leaves its box.
    outside = section.locator(".graph .layer text").evaluate_all(
        """(all) => all.filter((text) => {
          const box = text.closest('.layer').querySelector('rect').getBoundingClientRect();
          return text.getBoundingClientRect().right > box.right;
        }).map((text) => text.textContent)"""
    )
    assert outside == []
    assert alerts == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_model_is_accessible_in_both_themes_and_on_a_phone(new_page, site, show, scheme, width):
    from browser.conftest import log_in

    page = new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    log_in(page, site)
    show(NESTED, page)
    assert accessibility_faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = check_connections(page, [("0", "1"), ("1", "2"), ("1/0", "1/1"), ("1/1", "1/2"), ("1/0", "1/2")])
    assert min(box["left"] for box in boxes.values()) >= 0
