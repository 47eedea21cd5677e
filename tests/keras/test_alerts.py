"""`context.alert` in a run directory: on the chief only, once, with a line that says where it is kept."""

from __future__ import annotations

import contextlib
import json
import logging

import keras
import numpy as np
import pytest

import det_keras as det
from det_keras.errors import DetError

X = np.zeros((40, 4), "float32")


def alerts(run_dir):
    path = run_dir / "alerts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_alert_is_kept_in_the_run_directory_and_a_line_says_so(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        context.alert("Diverged", "The loss is not finite.", level="error")
        context.core.alert("Plain", level="debug")
    told = [(row["title"], row["description"], row["level"]) for row in alerts(tmp_path)]
    assert told == [("Diverged", "The loss is not finite.", "ERROR"), ("Plain", "", "DEBUG")]
    assert any(
        record.levelname == "ERROR" and "Diverged: The loss is not finite." in record.message
        for record in caplog.records
    )
    assert f"only kept in {tmp_path / 'alerts.jsonl'}" in caplog.text


@pytest.mark.parametrize(
    "arguments", [{"title": ""}, {"title": "x" * 1_001}, {"title": 7}, {"title": "x", "level": "loud"}]
)
def test_wrong_argument_is_refused(tmp_path, arguments):
    with det.keras.init(run_dir=tmp_path, seed=1) as context, pytest.raises(ValueError, match="must be"):
        context.alert(**arguments)


def test_closed_context_alerts_no_more(tmp_path):
    context = det.keras.init(run_dir=tmp_path, seed=1)
    context.close()
    with pytest.raises(DetError):
        context.alert("late")


def test_ranks_other_than_the_chief_alert_nothing(tmp_path, monkeypatch):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        monkeypatch.setattr(type(context.distributed), "is_chief", False)
        context.alert("Diverged")
        monkeypatch.undo()
    assert alerts(tmp_path) == []


class Alerting(keras.callbacks.Callback):
    """Alerts at each batch, and leaves the training after some."""

    def __init__(self, context, name, last):
        super().__init__()
        self.context = context
        self.name = name
        self.last = last

    def on_train_batch_end(self, batch, logs=None):
        self.context.alert(f"{self.name} {batch}")
        if batch == self.last:
            raise InterruptedError


def test_alerts_of_repeated_trainings_are_not_repeated(tmp_path):
    def run(last=None):
        with det.keras.init(
            run_dir=tmp_path, seed=1, config={"min_checkpoint_period": {"batches": 2}}
        ) as context:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")], name="model")
            model.compile(optimizer="sgd", loss="mse")

            def fit(*leaving):
                context.fit(
                    model, X, X[:, :1], batch_size=5, epochs=1, validate=False, verbose=0,
                    callbacks=[Alerting(context, *leaving)],
                )  # fmt: skip

            # The script leaves the first training, which a resume repeats.
            with contextlib.suppress(InterruptedError):
                fit("first", 2)
            fit("second", last)

    with pytest.raises(InterruptedError):
        run(last=4)
    before = [row["title"] for row in alerts(tmp_path)]
    assert before == [
        *(f"first {number}" for number in range(3)),
        *(f"second {number}" for number in range(5)),
    ]
    run()
    after = [row["title"] for row in alerts(tmp_path)][len(before) :]
    assert after[-1] == "second 7"
    assert not any(title.startswith("first") for title in after)
