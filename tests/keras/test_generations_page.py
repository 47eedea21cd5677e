"""The table of names in docs/generations.md, checked against the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import det_keras as det
import det_keras.experimental.keras
import det_keras.keras

PAGE = (Path(__file__).parents[2] / "docs" / "generations.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(det\.[\w.]+)` \| (\w+) \| (.*?) ?\|$", PAGE, re.MULTILINE)
# Made in `__init__`, so that the class does not show them.
ATTRIBUTES = {"det.keras.TFKerasTrialContext.distributed", "det.keras.TFKerasTrialContext.experimental"}
# Written down elsewhere: of the newest generation, or in a row with others.
ELSEWHERE = {
    "det.keras.FitHistory", "det.keras.KerasContext", "det.keras.init", "det.keras.callbacks",
    "det.keras.TFKerasTrialContext.prepare_sequence", "det.core.PreemptContext", "det.core.SearcherContext",
    "det.core.SearcherOperation", "det.core.CheckpointContext", "det.core.TrainContext",
}  # fmt: skip


def find(name):
    found = det
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def test_table_is_there():
    assert len(ROWS) > 90
    assert {status for _, status, _ in ROWS} == {"supported", "differs", "refused"}
    names = [name for name, _, _ in ROWS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("name", "status", "note"), ROWS, ids=[name for name, _, _ in ROWS])
def test_row_is_true(name, status, note):
    if status == "refused":
        with pytest.raises((AttributeError, ImportError)):
            find(name)
        assert note, "a refusal says what to use instead"
    elif name in ATTRIBUTES:
        assert name.rpartition(".")[2] in find(name.rpartition(".")[0]).__init__.__code__.co_names
    else:
        assert find(name) is not None
    if status == "differs":
        assert note, "a difference says which"


def public_names():
    for module, names in (("det.core", det.core.__all__), ("det.keras", det.keras.__all__)):
        yield from (f"{module}.{name}" for name in names)
    for name in det.keras.callbacks.__all__:
        yield f"det.keras.callbacks.{name}"
    for holder in ("TFKerasTrial", "TFKerasTrialContext", "TFKerasExperimentalContext"):
        own = vars(getattr(det.keras, holder))
        yield from (
            f"det.keras.{holder}.{name}"
            for name, value in own.items()
            if not name.startswith("_") and callable(value)
        )
    for holder in (
        "TrainContext",
        "CheckpointContext",
        "PreemptContext",
        "SearcherContext",
        "SearcherOperation",
    ):
        yield f"det.core.{holder}"


@pytest.mark.parametrize("name", sorted(set(public_names()) - ELSEWHERE))
def test_every_public_name_is_on_the_page(name):
    assert name in {name for name, _, _ in ROWS} or name == "det.keras.TFKerasTrial.trial_context_class"


def test_disabled_eager_execution_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorflow.executing_eagerly", lambda: False)
    with pytest.raises(det.errors.DetError, match="disable_eager_execution"):
        det.keras.init(run_dir=tmp_path)
    with pytest.raises(det.errors.DetError, match="disable_eager_execution"):
        det.keras.DeterminedCallback(None, None, 1)
    monkeypatch.undo()
    det.keras.init(run_dir=tmp_path).close()
