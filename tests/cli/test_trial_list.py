"""The table of all trials in a terminal, in files, and from a script, against a real master."""

from __future__ import annotations

import json

import pytest

from det_keras.client import Session
from det_keras.experimental.client import trial_table

pytestmark = pytest.mark.process

CONFIG = """
name: widths
entrypoint: python3 train.py
searcher: {name: grid, metric: loss}
hyperparameters: {width: {type: int, minval: 1, maxval: 4, count: 4}}
"""


@pytest.fixture(scope="module")
def session(cluster):
    """A connection with a master that has four trials; the trial of width w reported w / 8 last."""
    master = json.loads((cluster.home / "master.json").read_text())
    session = Session(master["url"], (cluster.home / "token").read_text().strip())
    experiment = session.post("/api/v1/experiments", {"config": CONFIG, "activate": False})["experiment"][
        "id"
    ]
    for trial in session.get(f"/api/v1/experiments/{experiment}/trials")["trials"]:
        for step, factor in ((1, 2.0), (2, 1.0)):
            metrics = {"loss": factor * trial["hparams"]["width"] / 8}
            body = session.api.trials.metrics_body(trial["id"], 0, "validation", step, metrics)
            session.api.trials.report_metrics(trial["id"], body)
    yield session
    session.close()


def test_table_is_printed_in_the_wanted_order(cluster, session):
    printed = cluster.out(
        "trial", "list", "--filter", "loss<.5", "--sort=-loss", "--columns", "width,loss,name"
    )
    assert [line.split() for line in printed.splitlines()] == [
        ["width", "loss", "name"],
        ["3", "0.375", "widths"],
        ["2", "0.25", "widths"],
        ["1", "0.125", "widths"],
    ]


def test_table_says_how_many_rows_are_left_out(cluster, session):
    lines = cluster.out("t", "ls", "--limit", "1", "--sort", "width", "--columns", "width").splitlines()
    assert lines == ["width", "    1", "1 of 4 rows; --limit or --csv show more."]


def test_groups_have_mean_and_deviation(cluster, session):
    printed = cluster.json("trial", "list", "--group", "name", "--columns", "width")
    assert printed == [
        {"name": "widths", "trials": 4, "mean.width": 2.5, "sd.width": pytest.approx(1.25**0.5)}
    ]


def test_file_is_that_of_the_page(cluster, session):
    question = ("--filter", "width>1", "--sort", "width", "--columns", "width,loss,max.loss")
    assert (
        cluster.out("trial", "list", *question, "--csv")
        == "width,loss,max.loss\n2,0.25,0.5\n3,0.375,0.75\n4,0.5,1.0\n"
    )


def test_unknown_name_is_one_sentence_with_the_nearest(cluster, session):
    done = cluster("trial", "list", "--filter", "widht>1")
    assert done.returncode == 1
    assert "`width`" in done.stderr
    assert "Traceback" not in done.stderr


def test_script_gets_rows_and_a_frame(cluster, session):
    table = trial_table("width>=2", sort="-loss", columns=["width", "loss"], limit=2, session=session)
    assert table.columns == ["width", "loss"]
    assert table.rows == [{"width": 4, "loss": 0.5}, {"width": 3, "loss": 0.375}]
    assert table.total == 4
    frame = table.to_frame()
    assert frame["width"].tolist() == [4, 3]
    assert frame.dtypes.astype(str).tolist() == ["int64", "float64"]
