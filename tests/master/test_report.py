"""Reports: one page that holds everything, and nothing that was not meant to run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import types

import pytest

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
    return [json.loads(block) for block in blocks]


def test_a_report_holds_curves_search_trials_and_config(world, experiment):
    html = fetch(world, f"/experiments/{experiment}/report").text
    drawn = figures(html)
    assert len(drawn) == 4
    assert [line["name"] for line in drawn[0]["data"]] == [
        f"Trial {i['id']}" for i in world.client.trials(experiment)
    ]
    assert drawn[0]["data"][0]["y"] == [1.0, 0.5, 0.3333333]
    assert drawn[1]["data"][0]["y"] == [0.1428571, None, 0.4285714]
    assert "max_trials: 2" in html
    assert "Plotly" in html


def test_only_the_two_scripts_of_a_report_may_run(world, experiment):
    response = fetch(world, f"/experiments/{experiment}/report")
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", response.text, re.DOTALL)
    assert len(scripts) == 2
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
