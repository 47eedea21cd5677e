"""The pages over HTTP: what they say, what they escape, and what they let nobody do."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from det_keras.master.database.models import AllocationRow, MetricRow, TrialRow
from det_keras.master.server.compression import CompressionMiddleware
from det_keras.master.web import alerts, rendering
from det_keras.master.web.alerts import runs_of
from det_keras.master.web.plotting.rungs import at_rung, stopped_at
from det_keras.master.web.plotting.searched import rungs_plot
from master.fakes import SINGLE, eventually, file_entry
from master.test_checkpoints import report as report_checkpoint
from master.test_doors import login

ACCEPT = {"Accept": "text/html"}
# What would break out of text, of an attribute, of a script, of a line and of an address.
EVIL = "<script>alert(1)</script>\"' onload=alert(2) </title></script>{{7*7}} \u202e\u05d0 \U0001f600"
RANDOM = """
name: a search
entrypoint: python3 train.py
searcher: {name: random, metric: loss, smaller_is_better: true, max_trials: 3, max_concurrent_trials: 3}
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}, width: 3}
environment: {environment_variables: ["SECRET_TOKEN=hush"]}
max_restarts: 0
"""


def page(world, path, status=200):
    """Return a page of a browser that is logged in."""
    answer = world.http.get(path, headers={**ACCEPT, "Cookie": f"auth={world.client.token}"})
    assert answer.status_code == status, (path, answer.text)
    return answer


def flat(text):
    """Return HTML without line breaks: they mean nothing between tags of blocks, and a space elsewhere."""
    return re.sub(r">\n<", "><", text).replace("\n", " ")


def report(world, trial, at, group="validation", run=1, **metrics):
    body = {
        "group": group,
        "metrics": {
            "trialId": trial["id"], "trialRunId": run, "stepsCompleted": at, "metrics": {"avgMetrics": metrics},
        },
    }  # fmt: skip
    world.client.post(f"/api/v1/trials/{trial['id']}/metrics", body)


@pytest.fixture
def search(world):
    """Return a search of three trials that have validated."""
    files = [file_entry("train.py", b"print('<b>bold</b>')\n"), file_entry("data.bin", b"\0\1")]
    experiment_id = world.client.create(RANDOM, modelDefinition=files)
    eventually(lambda: len(world.client.trials(experiment_id)) == 3)
    trials = world.client.trials(experiment_id)
    for number, trial in enumerate(trials):
        world.wait_for_launch(trial) if number < 2 else None
    for number, trial in enumerate(trials[:2]):
        for batches in (10, 20):
            report(world, trial, batches, loss=1.0 / (batches + number), epochs=batches / 10)
            report(world, trial, batches, group="training", loss=2.0 / batches)
    return experiment_id, trials


PAGES = (
    "/experiments", "/experiments?archived=true", "/experiments/{e}", "/experiments/{e}/search",
    "/experiments/{e}/checkpoints", "/experiments/{e}/code", "/experiments/{e}/code?file=data.bin",
    "/experiments/{e}/config", "/trials/{t}", "/trials/{t}/logs", "/experiments/{e}/trials/{t}/overview",
    "/experiments/{e}/fork", "/experiments/{e}/fork?trial={t}", "/compare", "/compare?trial={t}",
    "/compare?experiment={e}&trial={t}", "/trials", "/trials?q=lr<1&group=lr", "/cluster", "/jobs", "/projects",
    "/models", "/models?archived=true",
    "/audit", "/audit?kind=experiment&id={e}", "/webhooks", "/signin",
)  # fmt: skip


def test_every_page_is_whole_and_runs_no_foreign_script(world, search):
    experiment_id, trials = search
    for path in PAGES:
        answer = page(world, path.format(e=experiment_id, t=trials[0]["id"]))
        assert answer.text.rstrip().endswith("</html>"), path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "<script>" not in answer.text
        assert not re.search(r"\son\w+=", answer.text), path
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text), path


def test_first_page_leads_to_the_experiments(world):
    answer = world.http.get(
        "/", headers={**ACCEPT, "Cookie": f"auth={world.client.token}"}, follow_redirects=False
    )
    assert answer.headers["location"] == "/experiments"


def cells(world, path):
    """Return the rows of a table as dictionaries."""
    table = figure(world, path)
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def test_list_tells_the_best_metric_of_each(world, search):
    assert 'data-table="/tables/experiments"' in page(world, "/experiments").text
    (row,) = cells(world, "/tables/experiments")
    assert (row["id"], row["best"], row["metric"]) == (search[0], pytest.approx(1 / 21), "loss")
    assert row["state"] == "running"
    (best,) = [
        column for column in figure(world, "/tables/experiments")["columns"] if column["key"] == "best"
    ]
    assert best["better"] == "min"


def test_table_of_trials_marks_the_best_and_has_every_metric(world, search):
    experiment_id, _ = search
    names = "id,best,training.loss,max.training.loss"
    path = f"/api/v1/trials?experiments={experiment_id}&sort=best"
    first, *_ = cells(world, f"{path}&columns={names}")
    table = figure(world, path)
    # The best are first.
    assert table["bestIds"] == [first["id"]]
    assert first["training.loss"] == pytest.approx(0.1)
    assert first["max.training.loss"] == pytest.approx(0.2)
    columns = {column["key"]: column for column in table["columns"]}
    assert columns["best"]["title"] == "Best loss"
    assert columns["best"]["better"] == "min"
    # Only hyperparameters that differ are shown at first.
    assert "lr" in columns
    assert "width" not in columns
    assert "width" in {column["key"] for column in table["names"]}
    text = page(world, f"/experiments/{experiment_id}").text
    assert f'data-post="/api/v1/experiments/{experiment_id}/pause"' in text
    assert f'data-wall="/figures/wall?experiment={experiment_id}"' in text


def test_buttons_follow_the_state(world):
    experiment_id = world.client.create(activate=False)
    posts = rf'data-post="/api/v1/experiments/{experiment_id}/(\w+)"'
    assert re.findall(posts, page(world, f"/experiments/{experiment_id}").text) == [
        "activate",
        "cancel",
        "kill",
    ]
    world.client.move(experiment_id, "kill")
    world.client.wait_for_state(experiment_id, "CANCELED")
    assert re.findall(posts, page(world, f"/experiments/{experiment_id}").text) == ["archive"]
    assert 'data-post="/api/v1/experiments/continue"' in page(world, f"/experiments/{experiment_id}").text
    world.client.move(experiment_id, "archive")
    assert re.findall(posts, page(world, f"/experiments/{experiment_id}").text) == ["unarchive"]
    assert cells(world, "/tables/experiments") == []
    assert [row["id"] for row in cells(world, "/tables/experiments?archived=true")] == [experiment_id]


def test_secrets_of_a_config_are_hidden(world, search):
    for tab in ("config", "report"):
        text = page(world, f"/experiments/{search[0]}/{tab}").text
        assert "SECRET_TOKEN" in text
        assert "hush" not in text


def test_code_is_shown_as_it_is_and_can_be_taken_along(world, search):
    assert "&lt;b&gt;bold&lt;/b&gt;" in page(world, f"/experiments/{search[0]}/code").text
    assert "is not text" in page(world, f"/experiments/{search[0]}/code?file=data.bin").text
    page(world, f"/experiments/{search[0]}/code?file=../train.py", status=404)
    assert page(world, f"/experiments/{search[0]}/code.tar.gz").content[:2] == b"\x1f\x8b"


def test_comparison_puts_what_differs_first(world, search):
    _, trials = search
    text = page(world, f"/compare?trial={trials[0]['id']}&trial={trials[1]['id']}").text
    assert text.index(">lr<") < text.index(">width<")
    assert text.count('class="differs"') == 1


def test_runs_of_a_continued_trial_are_shown_in_their_order():
    starts = {"1": ["2024-05-01T10:00:00Z", "2024-05-01T12:00:00Z"], "2": [None, "2024-05-02T09:00:00Z"]}

    class Answers:
        async def get(self, path):
            task_id = path.removeprefix("/tasks/")
            return {"task": {"allocations": [{"startTime": start} for start in starts[task_id]]}}

    found = asyncio.run(runs_of(Answers(), {"taskIds": ["1", "2"]}))
    known = sorted((start for task in starts.values() for start in task if start), reverse=True)
    assert [allocation["startTime"] for allocation in found] == [*known, None]


def test_comparison_of_more_than_fifty_is_refused(world):
    numbers = "&".join(f"trial={number}" for number in range(10_001, 10_051))
    assert "At most 50 trials" not in page(world, f"/compare?{numbers}", status=404).text
    assert "At most 50 trials" in page(world, f"/compare?{numbers}&trial=1", status=400).text


def test_texts_of_users_are_escaped(world):
    config = f"{SINGLE}\ndescription: {json.dumps(EVIL)}\nlabels: [{json.dumps(EVIL)}]\n"
    experiment_id = world.client.create(f"{config}name: {json.dumps(EVIL)}\n")
    trial = world.client.trials(experiment_id)[0]
    world.wait_for_launch(trial)
    report(world, trial, 1, **{EVIL: 1.0, "x" * 10_000: 2.0})
    for path in (
        f"/experiments/{experiment_id}",
        f"/trials/{trial['id']}",
        f"/compare?trial={trial['id']}",
        f"/experiments/{experiment_id}/fork",
    ):
        text = page(world, path).text
        assert "<script>alert" not in text
        assert "</title></script>" not in text
        assert "49" not in re.findall(r"<h1[^>]*>(.*?)</h1>", text, re.S)[0]
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_pages_that_are_not_there_say_so_as_pages(world):
    for path in (
        "/experiments/999",
        "/trials/999",
        "/jobs/none",
        "/experiments/one",
        "/nothing/here",
        "/det/x",
    ):
        answer = page(world, path, status=404 if "one" not in path or "none" in path else 400)
        assert answer.headers["content-type"].startswith("text/html")
        assert "content-security-policy" in answer.headers
    assert world.http.get(
        "/experiments/999", headers={"Authorization": f"Bearer {world.client.token}"}
    ).json()


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", ""]
)
def test_login_leads_nowhere_else(world, target):
    text = world.http.get("/signin", params={"next": target}, headers=ACCEPT).text
    assert 'data-target="/"' in text


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/det/experiments/3/overview", "/experiments/3"),
        ("/det/experiments/3/trials/7/overview", "/trials/7"),
        ("/det/experiments/3", "/experiments/3"),
    ],
)
def test_addresses_of_the_original_lead_to_the_same_thing(world, address, place):
    headers = {"Cookie": f"auth={world.client.token}"}
    answer = world.http.get(address, headers=headers, follow_redirects=False)
    assert answer.headers["location"] == place
    for path in ("/det//evil.example", "/det/experiments/3//evil.example"):
        assert world.http.get(path, headers=headers, follow_redirects=False).status_code == 404


def test_static_files_are_open_and_only_those(world):
    for name in ("style.css", "page.js", "plotly-basic.min.js", "icon.svg"):
        assert world.http.get(f"/static/{name}").status_code == 200
    for name in ("..%2Fsite.py", "../site.py", "%2e%2e/rendering.py", "none.js", "style.css%00.js"):
        assert world.http.get(f"/static/{name}").status_code in (401, 404)


def figure(world, path):
    return page(world, path).json()


def test_wall_has_a_card_per_metric_and_a_run_per_trial(world, search):
    experiment_id, trials = search
    wall = figure(world, f"/figures/wall?experiment={experiment_id}")
    assert [card["title"] for card in wall["cards"]] == ["loss"]
    styles = {metric["key"]: metric["style"] for metric in wall["cards"][0]["metrics"]}
    assert styles == {"training.loss": "solid", "validation.loss": "dashed"}
    assert [run["id"] for run in wall["runs"]] == [trial["id"] for trial in trials]
    assert [run["best"] for run in wall["runs"]] == [pytest.approx(1 / 20), pytest.approx(1 / 21), None]


def test_lines_of_a_card_share_an_axis(world, search):
    _, trials = search
    wanted = "&".join(f"trial={trial['id']}" for trial in trials)
    drawn = figure(world, f"/figures/lines?{wanted}&metric=training.loss&metric=validation.loss")
    assert drawn["x"] == [10, 20]
    lines = {(line["trial"], line["metric"]): line["y"] for line in drawn["lines"]}
    assert lines[trials[1]["id"], "validation.loss"] == pytest.approx([1 / 11, 1 / 21], rel=1e-5)
    assert len(lines) == 4
    drawn = figure(world, f"/figures/lines?{wanted}&metric=validation.loss&x=epochs")
    assert drawn["x"] == [1, 2]
    page(world, f"/figures/lines?{wanted}&metric=training.loss&x=moons", status=400)


def test_expression_is_a_line_of_each_trial_that_has_its_metrics(world, search):
    _, trials = search
    wanted = "&".join(f"trial={trial['id']}" for trial in trials)
    drawn = figure(world, f"/figures/lines?{wanted}&expression=validation.loss*2-training.loss&smoothing=0.5")
    assert {line["metric"] for line in drawn["lines"]} == {"validation.loss*2-training.loss"}
    assert [line["isRaw"] for line in drawn["lines"]].count(True) == len(drawn["lines"]) / 2
    known = figure(world, f"/figures/lines?{wanted}&metric=training.loss&metric=validation.loss")["lines"]
    values = {(line["trial"], line["metric"]): line["y"] for line in known}
    for line in drawn["lines"]:
        training, validation = (
            values[line["trial"], f"{group}.loss"] for group in ("training", "validation")
        )
        expected = [2 * after - before for before, after in zip(training, validation, strict=True)]
        if line["isRaw"]:
            assert line["y"] == pytest.approx(expected, rel=1e-4)
    answer = page(world, f"/figures/lines?{wanted}&expression=validation.los", status=400)
    assert "Did you mean `validation.loss`?" in answer.text
    page(world, f"/figures/lines?{wanted}" + 21 * "&expression=loss", status=400)


def test_smoothed_lines_come_with_the_raw_ones(world, search):
    _, trials = search
    drawn = figure(world, f"/figures/lines?trial={trials[0]['id']}&metric=training.loss&smoothing=0.9")
    raw, smooth = drawn["lines"]
    assert (raw["isRaw"], smooth["isRaw"]) == (True, False)
    assert raw["y"] == pytest.approx([0.2, 0.1])
    assert smooth["y"][1] > raw["y"][1]


def test_plots_of_a_search_show_every_trial_with_a_metric(world, search):
    experiment_id, trials = search
    found = figure(world, f"/figures/search?experiment={experiment_id}")
    assert {trial["id"] for trial in found["trials"] if trial["value"] is not None} == {
        trial["id"] for trial in trials[:2]
    }
    assert found["axes"] == [{"name": "lr", "scale": "linear"}]
    # A trial has a value for each axis, and none for what is the same in all.
    lrs = {trial["id"]: [trial["hparams"]["lr"]] for trial in trials}
    assert {trial["id"]: trial["hparams"] for trial in found["trials"]} == lrs
    assert [(run["trial"], len(run["slots"])) for run in found["runs"]] == [
        (trial["id"], 1) for trial in trials[:2]
    ]
    assert len({slot for run in found["runs"] for slot in run["slots"]}) == 2


def test_rungs_fill_as_trials_reach_them(world):
    config = RANDOM.replace(
        "{name: random, metric: loss, smaller_is_better: true, max_trials: 3, max_concurrent_trials: 3}",
        "{name: async_halving, metric: loss, smaller_is_better: false, max_trials: 4, num_rungs: 2, divisor: 2,"
        " time_metric: batches, max_time: 20}",
    )
    experiment_id = world.client.create(config)
    trial = world.client.trials(experiment_id)[0]
    world.wait_for_launch(trial)
    report(world, trial, 10, loss=0.25, batches=10)
    answer = world.client.get(f"/api/v1/experiments/{experiment_id}/searcher/rungs")
    assert answer["unit"] == "batches"
    first, second = answer["brackets"][0]["rungs"]
    assert first == {"length": 10, "results": [{"trialId": trial["id"], "metric": 0.25}]}
    assert second == {"length": 20, "results": []}
    # The page asks once for all.
    whole = world.client.get(f"/api/v1/experiments/{experiment_id}/searcher")
    assert {name: whole[name] for name in answer} == answer
    assert whole == world.client.get(f"/api/v1/experiments/{experiment_id}/searcher/space")
    assert rungs_plot(world.client.experiment(experiment_id), answer)["results"] == [
        {"bracket": 1, "length": 10, "id": trial["id"], "value": 0.25}
    ]


def test_trials_of_all_brackets_are_compared_at_a_length(world):
    """A bracket without a rung of one epoch has trials that validated there all the same."""
    config = RANDOM.replace(
        "{name: random, metric: loss, smaller_is_better: true, max_trials: 3, max_concurrent_trials: 3}",
        "{name: adaptive_asha, metric: loss, smaller_is_better: true, max_trials: 6, max_concurrent_trials: 6,"
        " mode: conservative, max_rungs: 2, divisor: 2, time_metric: epochs, max_time: 2}",
    )
    experiment_id = world.client.create(config)
    eventually(lambda: len(world.client.trials(experiment_id)) == 6)
    trials = sorted(world.client.trials(experiment_id), key=lambda trial: trial["id"])
    for trial in trials[:2]:
        world.wait_for_launch(trial)
    for number, trial in enumerate(trials):
        first = 2 if number == 5 else 1
        for epoch in range(first, 3):
            loss = 10 * (epoch == 1) + number / 10
            # Two slots: the others have no run yet.
            report(world, trial, 10 * epoch, run=int(number < 2), loss=loss, epochs=epoch)
    brackets = world.client.get(f"/api/v1/experiments/{experiment_id}/searcher/rungs")["brackets"]
    rungs = [rung for bracket in brackets for rung in bracket["rungs"] if rung["length"] == 1]
    compared = [result for rung in rungs for result in rung["results"]]
    assert 0 < len(compared) < 6
    found = figure(world, f"/figures/search?experiment={experiment_id}&rung=1")
    values = {trial["id"]: trial["value"] for trial in found["trials"]}
    # What the search itself compared counts, such as the first report after the length of a rung.
    searched = {one["trialId"]: one["metric"] for one in compared}
    assert values == {
        trial["id"]: searched.get(trial["id"], 10 + number / 10 if number < 5 else None)
        for number, trial in enumerate(trials)
    }
    assert [trial["best"] for trial in found["trials"]] == [number / 10 for number in range(6)]
    assert found["importances"]


def test_time_axis_begins_with_the_first_run_not_in_the_queue(world):
    _, trial, _ = world.launch()
    with world.master.store.writing() as tx:
        tx.get(TrialRow, trial["id"]).start_time -= timedelta(hours=1000)
    report(world, trial, 10, loss=0.5)
    cpu = {
        "trialId": trial["id"],
        "trialRunId": 1,
        "metrics": {"avgMetrics": {"machine": {"cpu_util_trial": 5}}},
    }
    world.client.post(f"/api/v1/trials/{trial['id']}/metrics", {"group": "cpu", "metrics": cpu})
    for address in (
        f"/figures/lines?trial={trial['id']}&metric=validation.loss&x=time",
        f"/figures/system?trial={trial['id']}&metric=cpu.cpu_util_trial",
    ):
        (seconds,) = figure(world, address)["x"]
        assert 0 <= seconds < 600, address


def test_runs_are_on_a_time_line(world, search):
    _, trials = search
    text = flat(page(world, f"/trials/{trials[0]['id']}").text)
    assert re.search(r'<span class="running" style="margin-left: 0\.00%; width: 100\.00%">', text)


def test_odd_cookies_of_other_programs_hide_no_login(world):
    for odd in ("flag", 'x={"a":1}', "x=a b", "=", "auth2=y"):
        headers = {**ACCEPT, "Cookie": f"{odd}; auth={world.client.token}"}
        assert world.http.get("/experiments", headers=headers, follow_redirects=False).status_code == 200


def test_static_files_are_sent_once(world):
    answer = world.http.get("/static/plotly-basic.min.js")
    again = world.http.get("/static/plotly-basic.min.js", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert world.http.get(f"/static/{'x' * 300}.js").status_code == 404
    text = page(world, "/experiments").text
    assert re.search(r'src="/static/page.js\?v=\w+"', text)
    # Only a page that may show figures of plotly names its script.
    assert "plotly" not in text


def test_lines_tell_every_batch_and_gaps(world, search):
    _, trials = search
    for at, value in ((100_000_001, 0.5), (100_000_002, "NaN"), (100_000_003, 0.25)):
        report(world, trials[0], at, odd=value)
    drawn = figure(world, f"/figures/lines?trial={trials[0]['id']}&metric=validation.odd")
    assert drawn["x"] == [100_000_001, 100_000_002, 100_000_003]
    assert drawn["lines"][0]["y"] == [0.5, "NaN", 0.25]


def test_scripts_that_report_from_outside_are_not_paused(world):
    answer = world.client.post("/api/v1/experiments", {"config": SINGLE, "unmanaged": True})
    experiment_id = answer["experiment"]["id"]
    text = page(world, f"/experiments/{experiment_id}").text
    assert re.findall(rf'data-post="/api/v1/experiments/{experiment_id}/(\w+)"', text) == ["kill"]
    assert "runs outside of this master and is not notified" in text


def test_categories_that_begin_alike_stay_apart(world):
    kinds = [f"/data/{'long/' * 12}{name}" for name in ("one", "two")]
    config = RANDOM.replace("width: 3", f"path: {{type: categorical, vals: {json.dumps(kinds)}}}")
    config = config.replace("name: random", "name: grid").replace("maxval: 1}", "maxval: 1, count: 1}")
    config = config.replace(", max_trials: 3", "")
    experiment_id = world.client.create(config)
    trials = world.client.trials(experiment_id)
    for trial in trials:
        world.wait_for_launch(trial)
        report(world, trial, 1, loss=1.0)
    found = figure(world, f"/figures/search?experiment={experiment_id}")
    assert found["axes"] == [{"name": "path", "scale": "category"}]
    assert sorted(trial["hparams"][0] for trial in found["trials"]) == kinds


def test_cluster_page_shows_the_task_of_each_slot(world):
    _, trial, _ = world.launch()
    slots = page(world, "/cluster").text.split('id="slots"')[1].split("</ul>")[0]
    assert slots.count('class="used"') == slots.count('class="free"') == 1
    assert f"/trials/{trial['id']}" in slots.split("slot 1")[0]


def test_cluster_page_shows_slots_that_are_out_of_use(world):
    world.launch()
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    admin.post("/api/v1/agents/machine-0/disable", {"drain": True})
    slots = page(world, "/cluster").text.split('id="slots"')[1].split("</ul>")[0]
    assert slots.count('class="used"') == slots.count('class="disabled"') == 1
    assert "out of use when it ends" in " ".join(slots.split())


def test_answers_and_streams_of_lines_are_compressed(world, search):
    _, trials = search
    headers = {"Accept-Encoding": "gzip", "Authorization": f"Bearer {world.client.token}"}
    for path in (f"/experiments/{search[0]}", "/static/style.css"):
        assert (
            world.http.get(path, headers={**headers, "Accept": "text/html"}).headers["content-encoding"]
            == "gzip"
        )
    log = f"/api/v1/trials/{trials[0]['id']}/logs"
    world.pool.say(world.wait_for_launch(trials[0]), "one\n")
    world.pool.say(world.wait_for_launch(trials[0]), "two\n")
    eventually(lambda: len(world.client.log(trials[0]["id"])) >= 2)
    answer = world.http.get(log, headers=headers)
    assert answer.headers["content-encoding"] == "gzip"
    without = world.http.get(log, headers={**headers, "Accept-Encoding": "identity"})
    assert "content-encoding" not in without.headers
    assert answer.content == without.content
    assert len(answer.content.splitlines()) > 1
    plain = world.http.get("/static/style.css", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == world.http.get("/static/style.css", headers=headers).content


def test_each_part_of_a_compressed_stream_is_read_at_once():
    parts = [b"first\n", b"x" * 100_000 + b"\n", b"last\n"]

    async def app(scope, receive, send):
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"accept-encoding", b"gzip")]}
    asyncio.run(CompressionMiddleware(app)(scope, None, send))
    start, *bodies = sent
    assert (b"content-encoding", b"gzip") in start["headers"]
    reader = zlib.decompressobj(31)
    assert [reader.decompress(body["body"]) for body in bodies] == [*parts, b""]
    assert reader.eof
    assert sum(len(body["body"]) for body in bodies) < 1000


def test_log_of_a_page_is_counted_and_read_whole_by_those_who_are_logged_in(world):
    _, trial, allocation = world.launch()
    world.pool.say(allocation, "one\n")
    world.pool.say(allocation, "ERROR two\n", level="ERROR")
    eventually(lambda: len(world.client.log(trial["id"])) >= 2)
    lines = world.client.log(trial["id"])
    for place in (f"/logs/trials/{trial['id']}", f"/logs/tasks/{trial['taskId']}"):
        assert figure(world, f"{place}/count") == {"count": len(lines)}
        assert figure(world, f"{place}/count?levels=LOG_LEVEL_ERROR") == {"count": 1}
        assert figure(world, f"{place}/count?beforeId={lines[1]['id']}") == {"count": 1}
        text = page(world, f"{place}/log.txt").text
        assert [line.partition(" ")[2] for line in text.splitlines()] == [
            line["log"].rstrip("\n") for line in lines
        ]
        for name in ("count", "log.txt"):
            answer = world.http.get(f"{place}/{name}", follow_redirects=False)
            assert answer.status_code in (303, 401), (place, name)
    page(world, "/logs/trials/9999/log.txt", status=404)
    page(world, "/logs/tasks/none/log.txt", status=404)


def test_vendored_scripts_are_unchanged():
    folder = Path(rendering.__file__).parent / "static" / "vendor"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
    listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}


def test_failed_run_is_explained(world):
    number, trial, allocation = world.launch(f"{SINGLE}max_restarts: 0\n")
    reason = "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: '<b>'"
    world.pool.finish(allocation, 1, detail=reason)
    world.client.wait_for_state(number, "ERROR")
    for path in (f"/experiments/{number}", f"/trials/{trial['id']}"):
        box = page(world, path).text.split('id="alerts"')[1].split("</section>")[0]
        assert "KeyError: &#39;&lt;b&gt;&#39;" in box
        assert f"/trials/{trial['id']}/logs?error={allocation}" in box
        assert "Run again" in box
    assert world.client.get(f"/api/v1/allocations/{allocation}")["allocation"]["exitReason"] == reason


def test_failed_run_with_a_checkpoint_can_be_continued_from_its_batch(world):
    number, trial, allocation = world.launch(f"{SINGLE}max_restarts: 0\n")
    for count, steps in enumerate((1200, 400)):
        report_checkpoint(world, trial, count, steps)
    world.pool.finish(allocation, 1)
    world.client.wait_for_state(number, "ERROR")
    assert "Continue from batch 1,200" in page(world, f"/trials/{trial['id']}").text


def test_silent_trial_is_told(world, monkeypatch):
    _, trial, _ = world.launch()
    world.client.report(trial["id"], "training", 1, {"loss": 1.0})
    assert "has not reported" not in page(world, f"/trials/{trial['id']}").text
    later = datetime.now(timezone.utc) + timedelta(minutes=7)
    monkeypatch.setattr(alerts, "now", lambda: later)
    assert "This trial has not reported for 7 minutes." in page(world, f"/trials/{trial['id']}").text


def test_time_in_which_a_trial_did_not_run_is_no_silence(world):
    number, trial, allocation = world.launch()
    begin = datetime.now(timezone.utc) - timedelta(minutes=7)
    with world.master.store.writing() as tx:
        tx.get(TrialRow, trial["id"]).start_time = begin
    for path in (f"/experiments/{number}", f"/trials/{trial['id']}"):
        assert "has not reported" not in page(world, path).text
    with world.master.store.writing() as tx:
        tx.get(AllocationRow, allocation).start_time = begin
    for path in (f"/experiments/{number}", f"/trials/{trial['id']}"):
        assert "This trial has not reported for 7 minutes." in page(world, path).text


def test_trial_that_waits_for_its_data_is_told(world):
    number, trial, _ = world.launch()
    other = world.launch()[1]
    for percent in (90.0, 100.0, 50.0):
        assert "waits for its data" not in page(world, f"/trials/{trial['id']}").text
        world.client.report(trial["id"], "cpu", None, {"machine": {"data_wait_percent": percent}})
        world.client.report(other["id"], "cpu", None, {"machine": {"data_wait_percent": 49.0}})
    for path in (f"/trials/{trial['id']}", f"/experiments/{number}"):
        text = page(world, path).text
        assert "Training found no batch ready in 80 % of the time: it waits for its data." in text
    assert "waits for its data" not in page(world, f"/trials/{other['id']}").text
    # Of several machines, each may be the one that waits.
    for _ in range(3):
        world.client.report(other["id"], "cpu", None, {"other machine": {"data_wait_percent": 60.0}})
    assert "ready in 60 % of the time" in page(world, f"/trials/{other['id']}").text


def test_running_trial_tells_its_speed_and_the_time_left(world):
    number, trial, _ = world.launch()
    load = {"samples_per_second": 1234.5, "seconds_left": 7000.0, "data_wait_percent": 12.0}
    world.client.report(trial["id"], "cpu", None, {"machine": load})
    text = flat(page(world, f"/trials/{trial['id']}").text)
    assert "<dt>Samples a second</dt><dd>1,234</dd>" in text
    assert "<dt>Training ends in</dt><dd>about 1h 56m</dd>" in text
    assert "<dt>No batch ready</dt><dd>12 %</dd>" in text
    world.client.move(number, "kill")
    world.client.wait_for_state(number, "CANCELED")
    assert "Training ends in" not in page(world, f"/trials/{trial['id']}").text


def test_trial_without_a_new_sample_tells_no_speed(world):
    trial = world.launch()[1]
    assert "a second</dt>" not in page(world, f"/trials/{trial['id']}").text


def test_mean_wait_is_that_of_all_samples(world):
    trial = world.launch()[1]
    rows = [
        {
            "trial_id": trial["id"],
            "run_id": 1,
            "group": "cpu",
            "partition": "profiler",
            "total_batches": None,
            "archived": False,
            "metrics": {"machine": {"data_wait_percent": 100.0 if number % 5 == 0 else 5.0}},
            "end_time": datetime.now(timezone.utc) + timedelta(seconds=10 * number),
        }
        for number in range(8640)
    ]
    with world.master.store.adding() as connection:
        connection.execute(MetricRow.__table__.insert(), rows)
    assert "waits for its data" not in page(world, f"/trials/{trial['id']}").text


def test_levels_and_ids_select_lines(world):
    _, trial, allocation = world.launch()
    world.pool.say(allocation, "plain\n")
    world.pool.say(allocation, "derived\n", derived_level="ERROR")
    world.pool.say(allocation, "marked\n", level="WARNING")
    eventually(lambda: len(world.client.log(trial["id"])) >= 3)
    lines = [line for line in world.client.log(trial["id"]) if line["source"] == "task"]
    assert [line["level"].removeprefix("LOG_LEVEL_") for line in lines] == ["UNSPECIFIED", "ERROR", "WARNING"]
    # What clients print is not changed by a derived level.
    assert "ERROR" not in lines[1]["message"]
    found = world.client.log(trial["id"], levels=["LOG_LEVEL_ERROR"])
    assert [line["log"] for line in found] == ["derived\n"]
    after = world.client.log(trial["id"], afterId=lines[0]["id"])
    assert [line["log"] for line in after if line["source"] == "task"] == ["derived\n", "marked\n"]
    before = world.client.log(trial["id"], beforeId=lines[1]["id"])
    assert [line["log"] for line in before if line["source"] == "task"] == ["plain\n"]


def test_trial_that_was_stopped_by_the_search_says_at_which_rung():
    brackets = [
        {"trials": 2, "rungs": [
            {"length": 10, "results": [{"trialId": 1, "metric": 0.1}, {"trialId": 2, "metric": 0.2}]},
            {"length": 20, "results": [{"trialId": 1, "metric": 0.05}]},
        ]},
    ]  # fmt: skip
    trials = [
        {"id": 1, "state": "STATE_COMPLETED"},
        {"id": 2, "state": "STATE_COMPLETED"},
        {"id": 3, "state": "STATE_ERROR"},
    ]
    assert stopped_at(trials, brackets) == {2: "stopped at rung 1 of 2"}
    assert at_rung(brackets, 10) == {1: 0.1, 2: 0.2}
