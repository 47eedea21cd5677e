"""The live view of a training, in a real kernel and elsewhere."""

from __future__ import annotations

import re
import sys
import time
import types

import nbformat
import pytest
from nbclient import NotebookClient

from det_keras.keras.fit.callback_list import overrides
from det_keras.keras.history import FitHistory
from det_keras.keras.live_view import LiveView, live_views

TRAINING = """
import time
import keras, numpy as np
import det_keras as det
from det_keras.keras import live_view

# An update is due a second after the last one, however long the machine takes to draw it.
live_view._MOST_TIME = 1.0

class Slow(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.pause = {pause} if epoch == 1 else 0

    def on_train_batch_end(self, batch, logs=None):
        # Once inside of an epoch: then an update is due.
        if batch == 3:
            time.sleep(self.pause)

def train(name, verbose):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((32, 2), "float32")
    with det.keras.init(seed=1, run_dir={directory!r} + "/" + name) as context:
        return context.fit(model, x, x[:, :1], batch_size=2, epochs=5, verbose=verbose,
                           validation_data=(x, x[:, :1]), callbacks=[Slow()])
"""


class Client(NotebookClient):
    """Runs a notebook, and keeps the displays and updates that its kernel sends."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.displays: list[tuple[str, str]] = []

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.displays.append((message["msg_type"], message["content"]["data"]["text/html"]))
        return super().process_message(message, cell, cell_index)


@pytest.mark.process
def test_view_is_one_output_that_is_updated(tmp_path):
    source = TRAINING.format(pause=4.0, directory=str(tmp_path))
    lines = (
        "history = train('shown', 1)\nprint('LOSS', history.history['val_loss'][-1])",
        "train('silent', 0);",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (source, *lines)])
    client = Client(book, timeout=300, kernel_name="python3")
    client.execute()
    outputs, silent = book.cells[1].outputs, book.cells[2].outputs
    shown = [output for output in outputs if output.output_type == "display_data"]
    assert len(shown) == 1
    kinds = [kind for kind, _ in client.displays]
    # The first display, an update inside of the epoch with the pause, and the final state.
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert 3 <= len(kinds) <= 9
    assert any("batch" in html for _, html in client.displays)
    final = shown[0].data["text/html"]
    assert final == client.displays[-1][1]
    assert "5 epochs" in final
    assert final.count("<svg") == 1
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert f"{float(re.search(r'LOSS (.+)', text)[1]):.4g}" in final
    # With `verbose=0` there is none.
    assert [output for output in silent if output.output_type == "display_data"] == []


@pytest.mark.parametrize(
    ("shell", "verbose", "count"),
    [(types.SimpleNamespace(kernel=object()), 1, 1), (types.SimpleNamespace(kernel=object()), 0, 0),
     (types.SimpleNamespace(), 1, 0), (None, 1, 0)],
    ids=["kernel", "silent", "terminal", "none"],
)  # fmt: skip
def test_view_needs_a_kernel_and_output(monkeypatch, shell, verbose, count):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert len(live_views(FitHistory(), verbose=verbose)) == count


def test_a_script_does_not_import_ipython(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert live_views(FitHistory(), verbose=1) == []
    assert "IPython" not in sys.modules


@pytest.fixture
def displayed(monkeypatch):
    """Return the HTML that is displayed in a notebook without a kernel."""
    shown: list[str] = []
    module = types.SimpleNamespace(
        HTML=lambda html: html,
        display=lambda html, display_id: shown.append(html) or types.SimpleNamespace(update=shown.append),
    )
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_view_is_updated_once_a_second_and_at_the_end(displayed, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    history = FitHistory()
    history.on_train_begin()
    view = LiveView(history, inside_epochs=True)
    view.set_params({"epochs": 2, "steps": 10})
    view.on_train_begin()
    for epoch in range(2):
        view.on_epoch_begin(epoch)
        for batch in range(10):
            clock[0] += 0.25
            view.on_train_batch_end(batch, {"loss": 0.5})
        history.epoch.append(epoch)
        history.history.setdefault("loss", []).append(1.0)
        view.on_epoch_end(epoch)
    view.on_train_end()
    # Five seconds, the begin and the end.
    assert len(displayed) == 7
    assert "Epoch 1 of 2, batch 4 of 10" in displayed[1]
    assert "2 epochs" in displayed[-1]


def test_verbose_2_leaves_batches_alone(displayed):
    assert not overrides(LiveView(FitHistory(), inside_epochs=False), "on_train_batch_end")
    assert overrides(LiveView(FitHistory(), inside_epochs=True), "on_train_batch_end")


def test_a_display_that_fails_ends_the_view_only(displayed, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError("closed")

    monkeypatch.setattr(sys.modules["IPython.display"], "display", fail)
    view = LiveView(FitHistory(), inside_epochs=True)
    view.on_train_begin()
    view.on_train_batch_end(0, {"loss": 1.0})
    assert caplog.text.count("cannot be displayed") == 1
