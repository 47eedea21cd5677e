"""The media of a trial as people look at them: over their steps, whatever they are called, and nothing executes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.watch import accessibility_faults
from det_keras.client import Session
from det_keras.core.backend.detached import DetachedBackend, DetachedPlace, start_run
from det_keras.core.backend.local import RunDirectory
from det_keras.core.media.charts import confusion_matrix_content, histogram_content
from det_keras.core.media.content import figure_content, file_content, stored, text_content
from det_keras.core.media.images import image_content
from det_keras.core.media.store import MediaStore
from det_keras.core.media.tables import table_content
from det_keras.storage import DirectoryStorage

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
NAMES = [
    SCRIPT,
    "../../etc/passwd",
    "\u202e\u05d0\u05d1 right to left",
    "Gr\u00f6\u00dfe \U0001f600",
    "W" * 300,
]


@dataclass
class Logged:
    """A run that logs media.

    Attributes:
        trial_id: its trial.
        store: takes more of them.
        folder: a folder for files.
    """

    trial_id: int
    store: MediaStore
    folder: Path

    def file(self, name: str, content: str) -> Path:
        """Return a new file."""
        path = self.folder / name
        path.write_text(content, encoding="utf-8")
        return path


@pytest.fixture
def logged(site, tmp_path):
    session = Session(site.running.url, site.home.token_file.read_text().strip())
    config = "name: media\nsearcher: {name: single, metric: loss}\n"
    experiment = session.api.experiments.create_unmanaged(config, None)["experiment"]
    run = start_run(session, experiment["id"], {}, None)
    section = {"type": "directory", "container_path": str(tmp_path / "storage")}
    storage = DirectoryStorage(tmp_path / "storage")
    backend = DetachedBackend(run, session, DetachedPlace(RunDirectory(tmp_path / "run"), storage, section))
    store = MediaStore(storage, backend)
    yield Logged(run.trial_id, store, tmp_path)
    store.close()
    backend.close()


def card_of(page, name, kind=None):
    cards = page.locator("article.medium" + (f"[data-kind={kind}]" if kind else ""))
    return cards.filter(has=page.locator("h3", has_text=re.compile(f"^{re.escape(name)}$")))


def gray(value: int) -> np.ndarray:
    return np.full((4, 4), value, np.uint8)


def shown_gray(card) -> int:
    """Return the value of the pixels that the browser has drawn."""
    return card.locator("img").evaluate(
        """(image) => {
          const canvas = document.createElement("canvas");
          const pen = canvas.getContext("2d");
          pen.drawImage(image, 0, 0);
          return pen.getImageData(1, 1, 1, 1).data[0];
        }"""
    )


@pytest.mark.main_path
def test_slider_shows_the_item_of_each_step_and_follows_the_training(page, logged):
    for step in (10, 20, 30):
        logged.store.put("digits", step, image_content(gray(step), f"after {step}"))
    logged.store.flush()
    page.goto(f"/trials/{logged.trial_id}")
    card = card_of(page, "digits")
    expect(card.locator("output")).to_have_text("step 30")
    expect(card.locator("img")).to_have_attribute("alt", "after 30")
    assert shown_gray(card) == 30
    # A new step comes by itself.
    logged.store.put("digits", 40, image_content(gray(40), "after 40"))
    expect(card.locator("img")).to_have_attribute("alt", "after 40")
    slider = page.get_by_label("Step of digits")
    slider.focus()
    slider.press("Home")
    expect(card.locator("output")).to_have_text("step 10")
    expect(card.locator("img")).to_have_attribute("alt", "after 10")
    assert shown_gray(card) == 10
    slider.press("ArrowRight")
    expect(card.locator(".caption")).to_have_text("after 20")
    # The user's step stays when others come, and an item that is replaced is drawn again.
    logged.store.put("digits", 50, image_content(gray(50)))
    logged.store.put("digits", 20, image_content(gray(222), "again"))
    expect(card.locator("img")).to_have_attribute("alt", "again")
    assert shown_gray(card) == 222
    expect(slider).to_have_attribute("max", "4")
    expect(card.locator("output")).to_have_text("step 20")


def test_every_kind_is_drawn(page, logged, tmp_path):
    import plotly.graph_objects as go

    store = logged.store
    rows = [{"number": number, "text": f"row {number}"} for number in range(300)]
    store.put("figure", 1, figure_content(go.Figure(go.Scatter(y=[1, 3, 2]))))
    store.put("png", 1, stored("figure", "png", image_content(gray(9)).encode()))
    store.put("table", 1, table_content("table", rows))
    store.put("histogram", 1, histogram_content([0.0, 1.0, 1.0, 4.0, float("nan")], 4))
    store.put("matrix", 1, confusion_matrix_content([0, 1, 1], [0, 1, 0], ["cat", "dog"]))
    store.put("text", 1, text_content("one\n  two <b>three</b>"))
    store.put("file", 1, file_content(logged.file("weights.bin", "w" * 2048)))
    store.flush()
    page.goto(f"/trials/{logged.trial_id}")
    expect(card_of(page, "png").locator("img")).to_be_visible()
    table = card_of(page, "table")
    table.scroll_into_view_if_needed()
    expect(table.locator("tbody tr")).to_have_count(200)
    expect(table).to_contain_text("The first 200 of 300 rows")
    title = table.get_by_role("button", name="number")
    title.click()
    title.click()
    expect(table.locator("tbody td").first).to_have_text("199")
    expect(table.locator("th").first).to_have_attribute("aria-sort", "descending")
    histogram = card_of(page, "histogram")
    expect(histogram.locator("rect.bar title")).to_have_text(
        ["0 to 1: 1", "1 to 2: 2", "2 to 3: 0", "3 to 4: 1"]
    )
    expect(histogram).to_contain_text("5 values, 1 of them NaN or infinite")
    matrix = card_of(page, "matrix")
    expect(matrix.locator("rect.cell title")).to_have_text([
        "true cat, predicted cat: 1", "true cat, predicted dog: 0",
        "true dog, predicted cat: 1", "true dog, predicted dog: 1",
    ])  # fmt: skip
    assert card_of(page, "text").locator("pre").inner_text() == "one\n  two <b>three</b>"
    with page.expect_download() as started:
        card_of(page, "file").get_by_role("link", name="Download").click()
    assert started.value.suggested_filename == "weights.bin"
    with page.expect_download() as started:
        table.get_by_role("link", name="Download").click()
    assert started.value.suggested_filename == "table-1.json"
    started.value.save_as(tmp_path / "table.json")
    assert len(json.loads((tmp_path / "table.json").read_text())["rows"]) == 300
    figure = card_of(page, "figure")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".main-svg").first).to_be_visible()
    assert accessibility_faults(page) == []


def test_next_figure_loads_the_plotting_script_again_after_a_failure(page, logged):
    import plotly.graph_objects as go

    figure = figure_content(go.Figure(go.Scatter(y=[1, 3, 2])))
    logged.store.put("figure", 1, figure)
    logged.store.flush()
    page.route("**/plotly-basic.min.js*", lambda route: route.abort())
    with page.watch.forgiving("ERR_FAILED"):
        page.goto(f"/trials/{logged.trial_id}")
        card = card_of(page, "figure")
        card.scroll_into_view_if_needed()
        expect(card).to_contain_text("the plotting script did not come")
    page.unroute("**/plotly-basic.min.js*")
    logged.store.put("figure", 2, figure)
    expect(card.locator(".main-svg").first).to_be_visible()


def test_figure_is_as_wide_as_its_card(page, logged):
    import plotly.graph_objects as go

    logged.store.put("figure", 1, figure_content(go.Figure(go.Scatter(y=[1, 3, 2]))))
    logged.store.flush()
    page.goto(f"/trials/{logged.trial_id}")
    card = card_of(page, "figure")
    card.scroll_into_view_if_needed()
    drawing = card.locator(".main-svg").first
    expect(drawing).to_be_visible()
    body = card.locator(".body").bounding_box()["width"]
    assert body > 1000
    assert drawing.bounding_box()["width"] == pytest.approx(body, abs=4)
    # No button sends the figure anywhere.
    titles = card.locator(".modebar-btn").evaluate_all("(all) => all.map((one) => one.dataset.title)")
    assert titles
    harmless = re.compile(r"Download plot|Zoom|Pan|Autoscale|Reset axes|hover|spike|Toggle", re.IGNORECASE)
    assert [title for title in titles if not harmless.search(title)] == []


def test_numbers_of_tables_have_six_digits_and_the_full_value_as_title(page, logged):
    values = [1 / 3, 123456.789, 2.5e-7, 1e9 / 3, 12345678, 0.1 + 0.2, -1.5]
    logged.store.put("table", 1, table_content("table", [{"value": value} for value in values]))
    logged.store.flush()
    page.goto(f"/trials/{logged.trial_id}")
    cells = card_of(page, "table").locator("tbody td")
    expect(cells).to_have_text(["0.333333", "123457", "2.5e-7", "3.33333e+8", "12345678", "0.3", "-1.5"])
    titles = cells.evaluate_all("(all) => all.map((one) => Number(one.title))")
    assert titles == values


def test_media_are_shown_when_the_master_is_reached_again(page, site, logged):
    logged.store.put("text", 1, text_content("hello"))
    logged.store.flush()
    page.route("**/content?*", lambda route: route.abort())
    with page.watch.forgiving("ERR_FAILED"):
        page.goto(f"/trials/{logged.trial_id}")
        card = card_of(page, "text")
        card.scroll_into_view_if_needed()
        expect(card).to_contain_text(
            "The master cannot be reached. It is shown when the master answers again."
        )
    page.unroute("**/content?*")
    logged.store.put("another", 1, text_content("an event"))
    expect(card.locator("pre")).to_have_text("hello")


def test_nothing_executes_and_no_name_makes_the_page_wider(page, site, logged):
    store = logged.store
    for step, name in enumerate(NAMES):
        store.put(name, step, text_content(SCRIPT + name))
    for step, name in enumerate((SCRIPT, "W" * 300)):
        store.put(name, step, image_content(gray(step), SCRIPT))
        store.put(name, step, table_content(name, [{SCRIPT: name, name: SCRIPT}]))
        store.put(name, step, confusion_matrix_content(["a", name], [name, "a"]))
        store.put(name, step, file_content(logged.file(f"{step}.html", f"<html>{SCRIPT}")))
    # A program that is called an image, as a master might have got it from another client.
    store.put(
        "svg", 1, stored("image", "png", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(3)'/>")
    )
    store.put("figure", 1, stored("figure", "json", json.dumps({
        "data": [{"y": [1, 2], "name": SCRIPT, "text": [SCRIPT, "<a href='javascript:alert(4)'>x</a>"],
                  "mode": "text"}],
        "layout": {"title": {"text": f"<a href='javascript:alert(5)'>y</a>{SCRIPT}"}},
    }).encode()))  # fmt: skip
    store.flush()
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.goto(f"/trials/{logged.trial_id}")
    cards = page.locator("article.medium")
    expect(cards).to_have_count(len(NAMES) + 2 * 4 + 2)
    for card in cards.all():
        card.scroll_into_view_if_needed()
        expect(card.locator(".body > *").first).to_be_attached()
    expect(card_of(page, "svg")).to_contain_text("Could not be shown")
    expect(page.locator("article.medium .main-svg").first).to_be_visible()
    expect(card_of(page, SCRIPT, "text").locator("pre")).to_have_text(SCRIPT + SCRIPT)
    assert page.locator("main script, main [onload], main [onerror], main img[src=x]").count() == 0
    links = page.evaluate(
        """() => [...document.querySelectorAll("main a")].map(
          (link) => link.getAttribute("href") ?? link.getAttributeNS("http://www.w3.org/1999/xlink", "href"))"""
    )
    assert not [link for link in links if link and link.lower().startswith("javascript")]
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        # A plot takes its new size a moment later.
        page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)
    # Opened by itself, an HTML file is a download, and what claims to be an image does not run.
    listed = site.client.get(f"/api/v1/trials/{logged.trial_id}/media")["media"]
    address = f"/api/v1/trials/{logged.trial_id}/media/{{}}/content"
    # The image last: its page is in a sandbox, from which nothing may be downloaded.
    for shape in sorted(listed, key=lambda shape: shape["kind"]):
        if shape["kind"] == "file":
            with page.expect_download() as started:
                page.evaluate("(address) => location.assign(address)", address.format(shape["id"]))
            assert started.value.suggested_filename == shape["caption"]
        elif shape["name"] == "svg":
            with page.watch.forgiving("."):
                page.goto(address.format(shape["id"]))
                page.wait_for_timeout(200)
    assert alerts == []
