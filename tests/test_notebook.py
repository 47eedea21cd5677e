"""What objects show of themselves in a notebook."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import httpx
import numpy as np
import pytest

from det_keras import notebook
from det_keras.client import Session
from det_keras.experimental.client import get_experiment, get_trial

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "]]></svg><script>alert(1)</script>",
    "\u202eright to left",
    "😀",
    "x" * 10_000,
]
VOID = {"img", "br", "hr", "input", "meta", "link"}


class Reader(HTMLParser):
    """Reads HTML as a browser does, and insists that it is well formed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    assert reader.tags <= {
        "div",
        "strong",
        "bdi",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "path",
        "text",
        "tspan",
    }
    assert not any(name.startswith("on") for name in reader.attributes)
    return reader


def points(svg: str) -> list[list[tuple[float, float]]]:
    """Return the strokes of the last line of a plot."""
    path = re.findall(r'<path d="([^"]*)"', svg)[-1]
    return [
        [tuple(map(float, one.split())) for one in stroke.split("L")] for stroke in path.split("M") if stroke
    ]


def test_a_history_shows_its_metrics_and_losses():
    html = notebook.history_card(
        "2 epochs", [0, 1], {"loss": [2.0, 1.0], "val_loss": [3.0, math.nan], "acc": [0.5, 0.75]}
    )
    shown = read(html).text
    assert "2 epochs" in shown
    assert re.search(r"acc0\.50\.750\.50\.75", shown)
    assert "val_loss3.0-3.03.0" in shown
    ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert 'aria-label="loss and val_loss by epoch, from 1.0 to 3.0"' in html


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_users_name_stays_text(evil):
    html = notebook.card(
        evil,
        notebook.facts({evil: evil}),
        notebook.table((evil,), [(evil,), ({evil: [evil]},)]),
        notebook.curves(evil, {evil: ([1, 2], [1.0, 2.0])}),
    )
    shown = read(html).text
    assert evil[:100] in shown
    assert len(html) < 8000


def test_a_gap_is_drawn_as_one():
    svg = notebook.curves("x", {"x": (range(6), [1.0, 2.0, math.nan, "NaN", 3.0, 2.0])})
    assert [len(stroke) for stroke in points(svg)] == [2, 2]


def test_a_long_curve_keeps_its_extremes_and_stays_small():
    values = np.sin(np.arange(50_000) / 3000)
    values[30_001] = 9.0
    svg = notebook.curves("x", {"x": (range(50_000), values)})
    (stroke,) = points(svg)
    assert len(svg) < 8000
    assert min(y for _, y in stroke) == 20.0
    assert "x, from -1 to 9.0" in svg


@pytest.mark.parametrize("value", [1e17, -1e17, 1.7e308, [0.0, 5e-324]], ids=str)
def test_values_that_no_number_lies_between_are_drawn_as_a_level_line(value):
    values = value if isinstance(value, list) else [value, value]
    svg = notebook.curves("t", {"a": ([1, 2], values)})
    assert re.findall(r'<path d="(M[^"]*L[^"]*)"', svg) == ["M56.0 76.0L472.0 76.0"]


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [math.nan] * 5, [None, "x", True], [1e308, -1e308], [5.0, 5.0], [10**400, 1.0, 2.0]],
    ids=["none", "one", "nan", "text", "huge", "constant", "infinite"],
)
def test_any_values_give_a_page(values):
    html = notebook.history_card("x", range(len(values)), {"loss": values})
    assert "nan" not in html.split("aria-label")[-1].lower()
    read(html)


def test_an_empty_history_is_a_title():
    assert read(notebook.history_card("nothing", [], {})).text == "nothing"


def master(name: str = "digits", *, thins: bool = True) -> Session:
    """A master with one experiment of two trials."""
    entry = {"type": "number", "count": 2, "min": 0.5, "max": 0.9, "sum": 1.4, "mean": 0.7, "last": 0.9}
    trials = [
        {
            "id": i, "experimentId": 3, "state": "STATE_COMPLETED", "hparams": {"lr": 0.1, "name": name},
            "totalBatchesProcessed": 20,
            "bestValidation": None if value is None else {"metrics": {"avgMetrics": {name: value}}},
            "summaryMetrics": {"validation_metrics": {name: entry}},
        }
        for i, value in ((1, 0.5), (2, 0.9), (4, None))
    ]  # fmt: skip
    config = {"searcher": {"metric": name, "smaller_is_better": False}}
    experiment = {"id": 3, "name": name, "description": name, "state": "STATE_ACTIVE", "progress": 0.5}
    data = [
        {"batches": 10 * i, "values": {name: value}}
        for i, value in ((1, 0.5), (2, "NaN"), (3, 0.9), (4, 0.8))
    ]
    answers = {
        "/api/v1/experiments/3": {"experiment": experiment, "config": config},
        "/api/v1/experiments/3/trials": {"trials": trials},
        "/api/v1/trials/2": {"trial": trials[1]},
    }
    if thins:
        answers["/api/v1/trials/time-series"] = {
            "trials": [{"trial": trials[1], "metrics": [{"data": data}]}]
        }

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        return httpx.Response(200, json=answers[path]) if path in answers else httpx.Response(404, json={})

    return Session("http://master", transport=httpx.MockTransport(answer))


def test_an_experiment_shows_its_best_trials_and_a_curve():
    experiment = get_experiment(3, session=master())
    assert (experiment.state, experiment.metric, experiment.smaller_is_better) == ("ACTIVE", "digits", False)
    assert [trial.id for trial in experiment.list_trials()] == [2, 1, 4]
    assert experiment.best_trial().id == 2
    html = experiment._repr_html_()
    shown = read(html).text
    assert "Experiment 3: digits" in shown
    assert "50%" in shown
    assert "2COMPLETED0.920lr=0.1" in shown
    assert [len(stroke) for stroke in points(html)] == [1, 2]


def test_an_experiment_of_a_master_without_curves_shows_its_table():
    html = get_experiment(3, session=master(thins=False))._repr_html_()
    assert "<svg" not in html
    assert "COMPLETED" in read(html).text


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_a_master_says_stays_text(evil):
    session = master(evil)
    for shown in (get_experiment(3, session=session), get_trial(2, session=session)):
        html = shown._repr_html_()
        assert evil[:60] in read(html).text
        assert len(html) < 10_000


def test_a_trial_gives_its_curve():
    curve = get_trial(2, session=master()).metrics("digits")
    assert curve["batches"] == [10, 20, 30, 40]
    assert math.isnan(curve["values"][1])


def test_a_live_view_has_the_last_values_and_a_curve_of_each_metric():
    columns = {"loss": {0: 2.0, 1: 1.0}, "val_loss": {1: 3.0}, "<b>acc": {0: 0.5, 1: math.nan}}
    html = notebook.live_card("Epoch 3", columns, {"loss": 0.75, "<b>acc": 0.25}, 2.5)
    shown = read(html).text
    assert "Epoch 3metriclastloss0.75val_loss3.0<b>acc0.25" in shown
    assert html.count("<svg") == 2
    assert 'aria-label="loss and val_loss by epoch, from 0.75 to 3.0"' in html
    assert [len(stroke) for stroke in points(html)] == [1, 1]


def test_a_live_view_stays_small():
    columns = {f"metric {i}": {epoch: math.sin(epoch) for epoch in range(1000)} for i in range(100)}
    assert len(notebook.live_card("x", columns, {}, None)) < 100_000


def test_a_live_view_without_metrics_is_a_title():
    assert read(notebook.live_card("Training", {}, {}, None)).text == "Training"
