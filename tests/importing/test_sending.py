"""What is sent of a run, to a master that only remembers it."""

from __future__ import annotations

import json
import math
import threading
from datetime import datetime, timezone
from types import SimpleNamespace

import numpy as np
import pytest

from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.importing.base import BrokenRun, BrokenRunError, FoundRun, Run, tables_of
from det_keras.importing.sending import external_id, import_runs, parts_of, searcher_metric
from det_keras.protocol.imports import FLOATS, INTEGERS, MOST_REPORTS, MOST_VALUES, ROWS, packed, unpacked
from importing.test_base import series

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
NOTHING = {"added": 0, "changed": 0, "hasChanged": False}


def run_of(**fields) -> Run:
    return Run(**{"name": "n", "project": "", "state": "COMPLETED", "started": AT, "ended": AT, **fields})


def found(name: str = "a", run: Run | None = None) -> FoundRun:
    return FoundRun(name, f"/{name}", "f", lambda: run or run_of())


class Imports:
    """A master's calls of imports.

    Args:
        known: fingerprints by external id.
        answer: returns the answer to a part, or raises.
    """

    def __init__(self, known=None, answer=lambda name, part: {**NOTHING, "added": 1}) -> None:
        self.known, self.answer = known or {}, answer
        self.parts: list[tuple[str, dict]] = []
        self._lock = threading.Lock()

    def find(self, names):
        return {name: {"fingerprint": self.known[name]} for name in names if name in self.known}

    def store(self, name, part):
        with self._lock:
            self.parts.append((name, part))
        return self.answer(name, part)


def sent(imports: Imports, *runs, **options):
    return import_runs(SimpleNamespace(imports=imports), "mlflow", runs, **options)


def test_runs_are_counted_by_what_was_done():
    known = {"mlflow:same": "f", "mlflow:grown": "old", "mlflow:moved": "old", "mlflow:partly": ""}
    changes = {"mlflow:grown": {**NOTHING, "added": 1}}
    imports = Imports(known, lambda name, part: changes.get(name, NOTHING))
    report = sent(imports, *map(found, ("same", "grown", "moved", "partly", "new")))
    assert str(report) == "1 new, 2 continued, 2 unchanged"
    # The one that is unchanged was not even read.
    assert sorted(name for name, _ in imports.parts) == [
        "mlflow:grown",
        "mlflow:moved",
        "mlflow:new",
        "mlflow:partly",
    ]


def test_runs_that_cannot_be_read_or_are_refused_are_named_and_the_others_sent():
    def broken() -> Run:
        raise BrokenRunError("/b/loss:7: expected a number.")

    def answer(name, part):
        if name == "mlflow:c":
            raise MasterError(403, "no")
        return {**NOTHING, "added": 1}

    said, done = [], []
    report = sent(
        Imports(answer=answer),
        BrokenRun(BrokenRunError("/a is missing.")),
        FoundRun("b", "/b", "f", broken),
        found("c"),
        found("d"),
        on_failure=said.append,
        on_done=lambda: done.append(1),
    )
    assert (
        report.failures
        == said
        == [
            "/a is missing.",
            "/b/loss:7: expected a number.",
            "/c: the master refused it: no",
        ]
    )
    assert str(report) == "1 new, 0 continued, 0 unchanged"
    assert len(done) == 4


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PermissionError(13, "Permission denied", "/b/params"),
            "/b/params cannot be read: Permission denied.",
        ),
        (ValueError("a step has more than 64 bits"), "/b cannot be read: a step has more than 64 bits."),
    ],
)
def test_other_errors_of_a_run_do_not_end_the_import(error, text):
    def read() -> Run:
        raise error

    report = sent(Imports(), FoundRun("b", "/b", "f", read), found("c"))
    assert report.failures == [text]
    assert str(report) == "1 new, 0 continued, 0 unchanged"


def test_master_that_does_not_answer_ends_the_import():
    def answer(name, part):
        raise MasterUnavailableError("gone")

    imports = Imports(answer=answer)
    with pytest.raises(MasterUnavailableError):
        sent(imports, *(found(str(number)) for number in range(100)))
    assert len(imports.parts) < 20


def test_long_run_is_sent_in_parts_of_which_only_the_last_completes_it():
    steps = range(MOST_REPORTS * 2 + 5)
    points = {
        "loss": series(*((step, step / 7) for step in steps)),
        "rare": series((3, math.nan), (20_001, 2.0)),
    }
    run = run_of(tables=tables_of(points))
    parts = list(parts_of("mlflow", found(run=run), run))
    assert ["end" in part for part in parts] == [False] * (len(parts) - 1) + [True]
    all_steps, losses, rare = [], [], {}
    for part in parts:
        reports = values = 0
        for columns in part["reports"]:
            own = unpacked(columns["steps"], INTEGERS)
            reports += len(own)
            values += len(own) * len(columns["metrics"])
            all_steps += own.tolist()
            losses += unpacked(columns["metrics"]["loss"]["values"], FLOATS).tolist()
            if "rare" in columns["metrics"]:
                column = columns["metrics"]["rare"]
                where = own[unpacked(column["rows"], ROWS)].tolist()
                rare |= dict(zip(where, unpacked(column["values"], FLOATS).tolist(), strict=True))
        assert reports <= MOST_REPORTS
        assert values <= MOST_VALUES
    assert all_steps == list(steps)
    assert losses == [step / 7 for step in steps]
    assert str(rare) == "{3: nan, 20001: 2.0}"


def test_config_has_what_the_tracker_says_of_the_run():
    tables = tables_of({"val_accuracy": series((0, 1.0)), "loss": series((0, 1.0))})
    run = run_of(
        name="größe\nfirst",
        project="digits",
        tags=["team=vision", "", " x " * 200, "digits"],
        notes="Two\nlines.",
        tables=tables,
        hparams={"a": {"b": math.nan}},
    )
    (part,) = parts_of("wandb", found("digits/1"), run)
    config = json.loads(part["config"])
    assert config["name"] == "größe first"
    assert config["description"] == "Two\nlines."
    assert config["labels"][:3] == ["wandb", "digits", "team=vision"]
    assert all(0 < len(label) <= 255 for label in config["labels"])
    assert config["searcher"] == {"name": "single", "metric": "val_accuracy", "smaller_is_better": False}
    assert part["hparams"] == {"a": {"b": "NaN"}}
    assert part["end"]["state"] == "STATE_COMPLETED"


@pytest.mark.parametrize(
    ("names", "metric"),
    [
        ((), "val_loss"),
        (("loss",), "val_loss"),
        (("val_loss", "val_a"), "val_loss"),
        (("val/accuracy", "val/loss", "val/class_loss"), "val/loss"),
        (("eval_f1",), "eval_f1"),
    ],
)
def test_runs_are_compared_by_the_loss_of_their_validations(names, metric):
    assert searcher_metric(run_of(tables=tables_of({name: series((0, 1.0)) for name in names}))) == metric


def test_external_id_is_short_and_different_for_each_run():
    long = ["/" + "x" * 300 + str(number) for number in range(2)]
    names = [external_id("tensorboard", name) for name in (*long, "/a", "/b")]
    assert len(set(names)) == 4
    assert all(len(name) <= 255 for name in names)
    assert names[2] == "tensorboard:/a"


@pytest.mark.parametrize("kind", [INTEGERS, FLOATS, ROWS])
def test_columns_are_packed_exactly(kind):
    column = np.array([0, 1, -5, 1 << 30], kind[1:])
    found_column = unpacked(packed(column), kind)
    assert found_column.dtype == column.dtype
    assert found_column.tolist() == column.tolist()


@pytest.mark.parametrize("text", ["%", "AAAA", "ä"])
def test_text_that_is_no_column_is_refused(text):
    with pytest.raises(ValueError, match=r"base64|size|ASCII"):
        unpacked(text, FLOATS)
