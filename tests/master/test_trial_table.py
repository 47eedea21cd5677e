"""The table of all trials, over HTTP; what it should be is calculated by pandas from what each trial reported."""

from __future__ import annotations

import io
import random

import pandas as pd
import pytest
from sqlalchemy import update

from det_keras.master.database.models import TrialRow
from det_keras.master.table import filters
from master.fakes import SINGLE, eventually

SEARCH = """\
name: NAME
entrypoint: python3 train.py
searcher: {name: grid, metric: val_loss, max_concurrent_trials: 0}
hyperparameters:
  optimizer: {type: categorical, vals: [adam, sgd, null]}
  schedule: {rate: {type: double, minval: 0.001, maxval: 0.1, count: 4}, warmup: 3}
labels: [LABELS]
"""


def search(name: str, *labels: str) -> str:
    return SEARCH.replace("NAME", name).replace("LABELS", ", ".join(labels))


@pytest.fixture
def filled(world):
    """Return a world with 24 trials of two searches, and what they are as a frame."""
    draw = random.Random(3)
    rows = []
    for name, labels in (("digits one", ["asha", "team"]), ("mnist two", [])):
        experiment_id = world.client.create(search(name, *labels), activate=False)
        for trial in world.client.trials(experiment_id):
            row = {"id": trial["id"], "experiment": experiment_id, "name": name, "labels": labels}
            row |= {"optimizer": trial["hparams"]["optimizer"], "rate": trial["hparams"]["schedule"]["rate"]}
            if draw.random() < 0.8:
                values = [round(draw.random(), 3) for _ in range(3)]
                for step, value in enumerate(values, start=1):
                    metrics = {"val_loss": value, "val_accuracy": 1 - value / 2}
                    world.client.report(trial["id"], "validation", step, metrics, run_id=0)
                row |= {"val_loss": values[-1], "val_accuracy": 1 - values[-1] / 2, "best": min(values)}
            rows.append(row)
    return world, pd.DataFrame(rows)


def ask(world, **params):
    answer = world.client.get("/api/v1/trials", params={"limit": 1000, **params})
    keys = [column["key"] for column in answer["columns"]]
    return answer, [dict(zip(keys, cells, strict=True)) for cells in answer["rows"]]


def refused(world, **params) -> str:
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.get("/api/v1/trials", params=params, headers=headers)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["error"]


FILTERS = [
    ("", lambda row: True),
    ("optimizer=adam", lambda row: row.optimizer == "adam"),
    ("optimizer!=adam", lambda row: row.optimizer != "adam"),
    ("val_loss<.5", lambda row: row.val_loss < 0.5),
    ("val_accuracy>=0.8 optimizer:ad", lambda row: row.val_accuracy >= 0.8 and row.optimizer == "adam"),
    ("rate>0.03", lambda row: row.rate > 0.03),
    ("SCHEDULE.RATE<=1e-3", lambda row: row.rate <= 1e-3),
    ("label:asha", lambda row: "asha" in row.labels),
    ("label!=asha", lambda row: "asha" not in row.labels),
    ("experiment:mnist", lambda row: row["name"] == "mnist two"),
    ("experiment=1", lambda row: row.experiment == 1),
    ("MNIST", lambda row: row["name"] == "mnist two"),
    ('"digits one"', lambda row: row["name"] == "digits one"),
    ('name:"mnist two" best<.4', lambda row: row["name"] == "mnist two" and row.best < 0.4),
    ("state:paused id>5", lambda row: row.id > 5),
    ("state=completed", lambda row: False),
]
ORDERS = ("val_accuracy", "-val_accuracy", "-best", "rate", "-id", "name")


def test_filter_finds_what_a_frame_finds(filled):
    world, frame = filled
    for q, wanted in FILTERS:
        answer, rows = ask(world, q=q, columns="id")
        found = sorted(row["id"] for row in rows)
        assert found == [int(row.id) for _, row in frame.iterrows() if wanted(row)], q
        assert answer["found"] == len(rows)
        assert answer["total"] == len(frame)


def test_order_is_that_of_a_frame_and_trials_without_a_value_are_last(filled):
    world, frame = filled
    newest = frame.sort_values("id", ascending=False)
    for sort in ORDERS:
        _, rows = ask(world, sort=sort)
        ordered = newest.sort_values(
            sort.removeprefix("-"), ascending=not sort.startswith("-"), kind="stable", na_position="last"
        )
        assert [row["id"] for row in rows] == ordered["id"].tolist(), sort


def test_parts_of_a_table_are_the_table(filled):
    world, _ = filled
    _, whole = ask(world, sort="val_loss")
    parts = [ask(world, sort="val_loss", offset=offset, limit=7)[1] for offset in range(0, 24, 7)]
    assert [row for part in parts for row in part] == whole


def test_groups_have_the_mean_and_the_deviation_of_a_frame(filled):
    world, frame = filled
    answer, rows = ask(world, group="optimizer", columns="val_loss,rate", sort="-val_loss")
    assert answer["found"] == 3
    groups = frame.fillna({"optimizer": "none"}).groupby("optimizer")
    means = groups["val_loss"].mean().sort_values(ascending=False)
    assert [row["optimizer"] or "none" for row in rows] == means.index.tolist()
    for row in rows:
        group = groups.get_group(row["optimizer"] or "none")
        assert row["trials"] == len(group)
        assert row["mean.val_loss"] == pytest.approx(group["val_loss"].mean())
        assert row["sd.val_loss"] == pytest.approx(group["val_loss"].std(ddof=0))
        assert row["mean.schedule.rate"] == pytest.approx(group["rate"].mean())
    _, some = ask(world, group="optimizer", columns="val_loss", sort="trials", limit=1)
    assert len(some) == 1


def test_columns_that_fit_are_those_that_differ_and_those_of_the_question(filled):
    world, _ = filled
    answer, _ = ask(world, q="val_accuracy>.1 experiment:digits")
    keys = [column["key"] for column in answer["columns"]]
    assert keys[:4] == ["id", "name", "state", "best"]
    assert {"val_accuracy", "optimizer", "schedule.rate"} <= {*keys}
    # It is the same in all trials.
    assert "schedule.warmup" not in keys
    assert {"schedule.warmup", "min.val_loss"} <= {column["key"] for column in answer["names"]}


def test_file_has_exactly_what_is_shown(filled):
    world, _ = filled
    params = {"q": "val_loss>0", "sort": "-rate", "columns": "id,name,label,optimizer,val_loss,max.val_loss"}
    _, rows = ask(world, **params)
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.get("/trials.csv", params=params, headers=headers)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    frame = pd.read_csv(io.StringIO(answer.text), keep_default_na=False, na_values={"val_loss": [""]})
    assert frame.columns.tolist() == params["columns"].split(",")
    for row, (_, line) in zip(rows, frame.iterrows(), strict=True):
        assert line["id"] == row["id"]
        assert line["label"] == ", ".join(row["label"])
        assert line["optimizer"] == (row["optimizer"] or "")
        assert line["val_loss"] == row["val_loss"]


def test_text_that_a_spreadsheet_would_calculate_is_none_in_the_file(world):
    world.client.create(SINGLE + "\nname: '=1+1'\n", activate=False)
    headers = {"Authorization": f"Bearer {world.client.token}"}
    text = world.http.get("/trials.csv", params={"columns": "name"}, headers=headers).text
    assert text == "name\n'=1+1\n"


def test_unknown_name_is_refused_with_the_nearest(filled):
    world, _ = filled
    for params, nearest in (
        ({"q": "val_acuracy>.9"}, "`val_accuracy`"),
        ({"q": "optimiser=adam"}, "`optimizer`"),
        ({"sort": "-val_lost"}, "`val_loss`"),
        ({"columns": "id,schedule.rat"}, "`schedule.rate`"),
        ({"group": "optimzer"}, "`optimizer`"),
    ):
        text = refused(world, **params)
        assert "No trial has a value named" in text
        assert nearest in text


def test_bounds_are_named(world):
    assert "10000" in refused(world, limit=100_000)
    assert "10000" in refused(world, q="x" * 10_001)
    assert "100" in refused(world, columns=",".join(f"a{number}" for number in range(101)))
    assert refused(world, offset=-1)


def test_table_follows_every_change(world):
    first, trial, allocation = world.launch()
    (row,) = ask(world, columns="id,state,name,label,best,batches,archived")[1]
    assert row["state"] in ("starting", "running")
    world.client.report(trial["id"], "validation", 5, {"loss": 0.25})
    world.client.call("PATCH", f"/api/v1/experiments/{first}", {"name": "renamed", "labels": ["new"]})
    (row,) = ask(world, columns="id,state,name,label,best,batches,archived")[1]
    assert (row["name"], row["label"], row["best"], row["batches"]) == ("renamed", ["new"], 0.25, 5)
    world.pool.finish(allocation)
    eventually(lambda: ask(world, columns="state")[1] == [{"state": "completed"}])
    # A statement that names no rows.
    with world.master.store.writing() as tx:
        tx.execute(update(TrialRow).where(TrialRow.id == trial["id"]).values(searcher_metric_value=0.125))
    assert ask(world, columns="best")[1] == [{"best": 0.125}]
    world.client.post(f"/api/v1/experiments/{first}/archive")
    assert ask(world)[1] == []
    assert [row["id"] for row in ask(world, q="archived=true")[1]] == [trial["id"]]
    world.client.call("DELETE", f"/api/v1/experiments/{first}")
    eventually(lambda: ask(world, q="archived=true")[0]["found"] == 0)


def test_nan_and_infinity_are_values_that_no_filter_takes_for_numbers(world):
    _, trial, _ = world.launch()
    world.client.report(trial["id"], "validation", 1, {"loss": "NaN", "top": "Infinity"})
    _, (row,) = ask(world, columns="loss,top")
    assert row == {"loss": "NaN", "top": "Infinity"}
    assert ask(world, q="loss<1")[1] == []
    assert len(ask(world, q="top>1")[1]) == 1


def test_master_without_trials_finds_none_whatever_is_asked(world):
    answer, rows = ask(world, q="val_accuracy>.9", sort="-val_accuracy", group="optimizer")
    assert rows == []
    assert answer["total"] == 0


def test_terms_are_read_as_on_the_walls():
    assert filters.parse('a>=1e-2 b:"two words" "x=y" word') == [
        filters.Term("a", ">=", "1e-2"),
        filters.Term("b", ":", "two words"),
        filters.Term("", ":", "x=y"),
        filters.Term("", ":", "word"),
    ]
