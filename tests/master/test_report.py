"""Reports: one page that holds everything, and nothing that was not meant to run."""

from __future__ import annotations

import base64
import hashlib
import html as html_text
import json
import re
import sys
import time
import types
from datetime import datetime

import numpy as np
import pytest

from det_keras.master.database.models import TaskRow, TrialRow
from det_keras.master.reports.series import Series
from det_keras.master.web import report
from det_keras.master.web.findings import findings

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e😀" + "x" * 10_000
# YAML takes JSON's text for its own.
NAME = json.dumps(EVIL, ensure_ascii=False)


@pytest.fixture
def experiment(world):
    """The number of a search whose every name is an attack."""
    hparams = (
        '{"<b>lr": {type: double, minval: 0.1, maxval: 1.0}, "word": {type: categorical, vals: [%s, "b"]}}'
    )
    config = (
        f"name: {NAME[:110]}\"\ndescription: {NAME}\nlabels: [{NAME}]\nentrypoint: python3 train.py\n"
        f"hyperparameters: {hparams % NAME}\nsearcher: {{name: random, metric: \"<i>loss\", max_trials: 2}}\n"
    )  # fmt: skip
    number = world.client.create(config=config)
    for i, trial in enumerate(world.client.trials(number)):
        world.wait_for_launch(trial)
        for step in (1, 2, 3):
            world.client.report(
                trial["id"], "training", step, {EVIL[:5000]: "NaN" if step == 2 else step / 7}
            )
            world.client.report(trial["id"], "validation", step, {"<i>loss": i + 1 / step})
    return number


def fetch(world, path: str, status: int = 200):
    response = world.http.get(path, headers={"Authorization": f"Bearer {world.client.token}"})
    assert response.status_code == status, response.text
    return response


def figures(html: str) -> list[dict]:
    blocks = re.findall(r'<script type="application/json" id="figure-\d+">(.*?)</script>', html, re.DOTALL)
    return [json.loads(block, parse_constant=pytest.fail) for block in blocks]


def test_a_report_holds_curves_search_trials_and_config(world, experiment):
    html = fetch(world, f"/experiments/{experiment}/report").text
    drawn = figures(html)
    assert len(drawn) == 4
    lines = drawn[0]["curves"]["curves"]["lines"]
    assert [line["trial"] for line in lines] == [trial["id"] for trial in world.client.trials(experiment)]
    assert lines[0]["y"] == [1, 0.5, 0.333333]
    assert drawn[1]["curves"]["curves"]["lines"][0]["y"] == [0.142857, "NaN", 0.428571]
    assert [next(iter(one)) for one in drawn[2:]] == ["effects", "parallel"]
    assert "max_trials: 2" in html


def test_only_the_script_of_a_report_may_run(world, experiment):
    response = fetch(world, f"/experiments/{experiment}/report")
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", response.text, re.DOTALL)
    assert len(scripts) == 1
    fingerprints = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', response.text)[1].replace(
        "&#39;", "'"
    )
    allowed = re.search(r"script-src ([^;]*)", policy)[1]
    assert allowed == " ".join(f"'sha256-{one}'" for one in fingerprints)
    assert response.headers["Content-Security-Policy"].startswith(policy)
    assert policy.startswith("default-src 'none'")


def test_what_users_named_is_text_in_a_report(world, experiment):
    html = fetch(world, f"/experiments/{experiment}/report").text
    outside = re.sub(r"<script.*?</script>|<style>.*?</style>", "", html, flags=re.DOTALL)
    assert "<img src" not in outside
    assert "<b>lr" not in outside
    assert "<i>loss" not in outside
    assert "&lt;i&gt;loss" in outside
    # Nothing is loaded: no address, of a file or of a host.
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', outside) == []


def test_an_experiment_without_metrics_has_a_report(world):
    number = world.client.create(activate=False)
    html = fetch(world, f"/experiments/{number}/report").text
    assert figures(html) == []
    assert "No metric was reported." in html
    assert "has reported no metric yet" in fetch(world, f"/experiments/{number}/report.png", 400).text


def test_an_unknown_experiment_has_none(world):
    fetch(world, "/experiments/99/report", 404)


def test_a_report_is_for_those_who_are_logged_in(world, experiment):
    assert world.http.get(f"/experiments/{experiment}/report").status_code == 401


def test_a_picture_without_kaleido_says_what_to_install(world, experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    assert "det_keras[png]" in fetch(world, f"/experiments/{experiment}/report.png", 501).json()["message"]


def test_a_picture_is_drawn_with_our_own_scripts(world, experiment, monkeypatch):
    asked = {}

    def draw(figure, opts, kopts):
        asked.update(figure=figure, opts=opts, kopts=kopts)
        return b"\x89PNG"

    monkeypatch.setitem(sys.modules, "kaleido", types.SimpleNamespace(calc_fig_sync=draw))
    assert fetch(world, f"/experiments/{experiment}/report.png").content == b"\x89PNG"
    assert asked["kopts"]["mathjax"] is False
    assert asked["kopts"]["plotlyjs"].is_file()
    assert len(asked["figure"]["data"]) == 2


def test_a_browser_that_does_not_start_is_told(world, experiment, monkeypatch):
    def draw(*_, **__):
        raise RuntimeError("no browser\nand much more")

    monkeypatch.setitem(sys.modules, "kaleido", types.SimpleNamespace(calc_fig_sync=draw))
    told = fetch(world, f"/experiments/{experiment}/report.png", 501).json()["message"]
    assert told.endswith("Kaleido reports: no browser")


def detached(
    world, hparams: list[dict], *, metric: str = "loss", smaller: bool = True
) -> tuple[int, list[int]]:
    """Return an experiment whose trials run outside of the master, and its trials."""
    space = "{lr: {type: double, minval: 0.0, maxval: 9.0}, units: {type: int, minval: 1, maxval: 9}}"
    searcher = f"{{name: random, metric: {metric}, max_trials: 5, smaller_is_better: {str(smaller).lower()}}}"
    number = world.client.create(
        f"name: digits\nhyperparameters: {space}\nsearcher: {searcher}\n", unmanaged=True
    )
    trials = []
    for values in hparams:
        body = {"experimentId": number, "hparams": values, "unmanaged": True}
        trials.append(world.client.post("/api/v1/trials", body)["trial"]["id"])
        world.client.post(f"/api/v1/trials/{trials[-1]}/start", {"trialId": trials[-1], "resume": False})
    return number, trials


def sentences(html: str) -> list[str]:
    shown = re.search(r'id="findings">(.*?)</ul>', html, re.DOTALL)[1]
    found = [html_text.unescape(item) for item in re.findall(r"<li>(.*?)</li>", shown)]
    return [re.sub("[\u2068\u2069]", "", sentence) for sentence in found]


@pytest.mark.parametrize(("smaller", "expected"), [(True, min), (False, max)], ids=["smallest", "largest"])
def test_sentences_of_a_report_say_what_the_trials_reported(world, smaller, expected):
    hparams = [{"lr": 0.5 * i + 0.5, "units": (3, 1, 4, 1, 5)[i]} for i in range(5)]
    number, ids = detached(world, hparams, smaller=smaller)
    for i, trial in enumerate(ids):
        # The better of two validations counts.
        for batches in (10, 20):
            world.client.report(trial, "validation", batches, {"loss": (i - 1.75) ** 2 + batches / 100})
    for trial, state in zip(ids, ("COMPLETED", "COMPLETED", "ERROR", "CANCELED"), strict=False):
        world.client.call("PATCH", f"/api/v1/trials/{trial}", {"trialId": trial, "state": f"STATE_{state}"})
    said = sentences(fetch(world, f"/experiments/{number}/report").text)
    values = {
        trial["id"]: trial["bestValidation"]["metrics"]["avgMetrics"]["loss"]
        for trial in world.client.trials(number)
    }
    best = expected(values, key=values.get)
    chosen = world.client.trial(best)["hparams"]
    assert said[0] == (
        f"Trial {best} has the {'smallest' if smaller else 'largest'} loss, {values[best]:.4g}, "
        f"with lr = {chosen['lr']:g} and units = {chosen['units']}."
    )
    assert said[1] == "Of 5 trials, 2 completed, 1 failed, 1 was canceled and 1 has not ended."
    assert re.fullmatch(
        r"The most important hyperparameters are \w+ \(\d\.\d\d\) and \w+ \(\d\.\d\d\), by \w+\.", said[2]
    )
    data = world.client.get(f"/figures/search?experiment={number}")
    named = {name: float(value) for name, value in re.findall(r"(\w+) \(([\d.]+)\)", said[2])}
    # Both are rounded.
    assert named == pytest.approx({one["name"]: one["value"] for one in data["importances"]}, abs=0.00501)
    assert said[2].endswith(f"by {data['method']}.")
    assert re.fullmatch(r"The experiment has taken \d+s so far\.", said[3])


def test_trials_that_the_search_stopped_are_told_from_completed_ones():
    trials = [
        {"id": i, "state": "STATE_COMPLETED", "hparams": {"lr": i}, "searcherMetricValue": i / 10}
        for i in (1, 2, 3)
    ]
    results = [[{"trialId": i, "metric": i / 10} for i in ids] for ids in ((1, 2, 3), (1,))]
    brackets = [{"rungs": [{"length": 4**i, "results": found} for i, found in enumerate(results)]}]
    experiment = {
        "state": "STATE_COMPLETED",
        "searcherMetric": "loss",
        "bestTrialId": 1,
        "bestTrialSearcherMetric": 0.1,
        "duration": 3720,
        "config": {"searcher": {"smaller_is_better": True}, "hyperparameters": {}},
    }
    said = [re.sub("[\u2068\u2069]", "", sentence) for sentence in findings(experiment, trials, brackets)]
    assert said == [
        "Trial 1 has the smallest loss, 0.1, with lr = 1.",
        "Of 3 trials, 1 completed and 2 were stopped by the search.",
        "The experiment took 1h 02m.",
    ]


def test_the_text_and_the_notes_of_a_report_are_markdown_without_html(world, experiment):
    world.client.call("PATCH", f"/api/v1/experiments/{experiment}", {"notes": f"- noted\n\n{EVIL[:60]}"})
    text = (
        f"# Why\n\n**bold** {EVIL[:60]}\n\n![picture](http://example.com/x.png) [link](javascript:alert(1))"
    )
    headers = {"Authorization": f"Bearer {world.client.token}"}
    response = world.http.post(f"/experiments/{experiment}/report", json={"text": text}, headers=headers)
    assert response.status_code == 200
    own, notes = re.findall(r'<section class="markdown".*?>(.*?)</section>', response.text, re.DOTALL)
    assert "<h1>Why</h1>" in own
    assert "<strong>bold</strong>" in own
    assert "<li>noted</li>" in notes
    for part in (own, notes):
        assert "<script" not in part
        assert "<img" not in part
        assert 'javascript:alert(1)"' not in part
        assert "&lt;script&gt;alert(1)" in part
    plain = fetch(world, f"/experiments/{experiment}/report").text
    assert "<strong>bold</strong>" not in plain
    assert "noted" in plain


def test_a_text_that_is_too_long_is_refused(world, experiment):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    path = f"/experiments/{experiment}/report"
    assert world.http.post(path, json={"text": "x" * 200_001}, headers=headers).status_code == 400


class Curves:
    """Long curves, of as many digits as floats have."""

    def read(self, trial_ids, *, group, metric, most_points, smoothing):
        random = np.random.default_rng(1)
        count = 5000
        batches = np.sort(random.choice(100_000, count, replace=False))
        return [
            Series(trial, datetime.now(), batches, None, batches / 7, random.random(count), count)
            for trial in trial_ids
        ]


def test_a_report_of_fifty_trials_and_eight_metrics_is_small_enough_for_mail(world, monkeypatch):
    number, ids = detached(world, [{"lr": i / 7, "units": 1 + i % 9} for i in range(50)])
    for i, trial in enumerate(ids):
        world.client.report(
            trial, "validation", 10, {"loss": i / 3, **{f"metric_{j}": j / 7 for j in range(7)}}
        )
    monkeypatch.setattr(world.master, "curves", Curves())
    html = fetch(world, f"/experiments/{number}/report").text
    cards = [figure["curves"]["curves"] for figure in figures(html)[:8]]
    assert sum(len(card["lines"]) for card in cards) == 400
    assert all(len(card["x"]) >= 200 for card in cards)
    assert len(html.encode()) < 1_500_000


def columns_of(row) -> dict:
    return {column.key: getattr(row, column.key) for column in type(row).__table__.columns}


def test_the_most_important_hyperparameter_is_drawn_first(world):
    number, ids = detached(world, [{"lr": 1.0 + i % 3, "units": 1 + i} for i in range(8)])
    for i, trial in enumerate(ids):
        world.client.report(trial, "validation", 10, {"loss": i / 7})
    important = world.client.get(f"/figures/search?experiment={number}")["importances"]
    assert [one["name"] for one in important] == ["units", "lr"]
    (*_, effects, _) = figures(fetch(world, f"/experiments/{number}/report").text)
    assert [axis["name"] for axis in effects["effects"]["axes"]] == ["units", "lr"]


def test_a_report_of_a_large_search_shows_the_best_trials_and_stays_small(world, monkeypatch):
    number, (first,) = detached(world, [{"lr": 1.0, "units": 1}])
    metrics = {"loss": 2.0, **{f"metric_{j}": j / 7 for j in range(7)}}
    world.client.report(first, "validation", 10, metrics)
    # Two thousand trials by the API would take a minute.
    with world.master.store.writing() as tx:
        row = tx.get(TrialRow, first)
        known, of_task = columns_of(row), columns_of(tx.get(TaskRow, row.task_id))
        for i in range(1, 2000):
            tx.add(TaskRow(**of_task | {"id": f"of {i}"}))
        tx.flush()
        for i in range(1, 2000):
            changes = {
                "task_id": f"of {i}",
                "request_id": f"of {i}",
                "external_id": f"of {i}",
                "searcher_metric_value": i / 2000,
            }
            hparams = {"lr": i / 7, "units": i % 9, "word": "x" * 200 + str(i % 3)}
            tx.add(TrialRow(**known | changes | {"id": first + i, "hparams": hparams}))
    monkeypatch.setattr(world.master, "curves", Curves())
    results = [{"trialId": first + i, "metric": i / 2000} for i in range(1, 2000)]
    rungs = [{"length": 4**i, "results": results[: 2000 // 4**i]} for i in range(4)]
    facts = report._facts

    async def facts_with_rungs(request, number):
        brackets = [{"trials": 2000, "rungs": rungs}]
        return await facts(request, number) | {"rungs": {"unit": "epochs", "brackets": brackets}}

    monkeypatch.setattr(report, "_facts", facts_with_rungs)
    began = time.process_time()
    html = fetch(world, f"/experiments/{number}/report").text
    # It took minutes when the importances were those of all trials.
    assert time.process_time() - began < 60
    assert len(html.encode()) < 1_500_000
    *_, dots, lines, climbed = figures(html)
    results = climbed["rungs"]["results"]
    assert [result["length"] for result in results].count(16) == 125
    assert results[0]["id"] == first + 1
    assert "at the rungs (the best 150 of each)" in html
    best = [first + i for i in range(1, len(lines["parallel"]["trials"]) + 1)]
    assert [trial["id"] for trial in lines["parallel"]["trials"]] == best
    assert dots["effects"] == lines["parallel"]
    assert f"(the best {len(best):,} of 2,000 trials)" in html
    assert "1,800 more trials, all of them worse, are omitted." in " ".join(html.split())
