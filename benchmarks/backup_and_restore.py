"""Kills the same scripts at the same batches, once with Keras's BackupAndRestore and once with det_keras.

    python benchmarks/backup_and_restore.py

Prints the table of docs/backup-and-restore.md. Each side is compared with its own undisturbed run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_TRAININGS = _ROOT / "tests" / "keras"
sys.path[:0] = [str(_TRAININGS), str(_ROOT)]

# All after the end of the first epoch, which has 11: before it, saving each epoch has nothing to go on from.
KILLS = (14, 20, 28)
SAVE_EVERY = 3
# Who saves how often: BackupAndRestore by its `save_freq`, None for det_keras every few batches.
SIDES: tuple[str | int | None, ...] = ("epoch", SAVE_EVERY, None)
TITLES = {
    "arrays": "arrays, shuffled",
    "dict_with_sample_weights": "dict inputs, sample weights",
    "pydataset": "PyDataset, 2 workers",
    "tf_data": "tf.data with shuffle",
    "steps_per_execution": "`steps_per_execution=4`",
    "class_weights": "class weights, EarlyStopping, ReduceLROnPlateau",
    "two_optimizers": "custom `train_step`, two optimizers",
    "mixed_float16": "mixed_float16",
    "ema": "Adam with EMA",
    "two_phases": "two phases",
}


@dataclass(frozen=True)
class End:
    """How a training ended.

    Attributes:
        digest: of all variables of model and optimizers and all histories.
        weights: of the model.
        histories: of each `fit`.
        error: why it could not go on, None if it did.
    """

    digest: str = ""
    weights: list[Any] = field(default_factory=list)
    histories: list[Any] = field(default_factory=list)
    error: str | None = None


@dataclass
class Row:
    """What the killed trainings of one kind came to on one side."""

    same: int = 0
    other_histories: int = 0
    ended: int = 0
    largest: float = 0.0

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        largest = f"{self.largest:.2g}" if self.ended else "does not start again"
        return [f"{self.same} of {len(KILLS)}", largest, f"{self.other_histories} of {self.ended}"]


class PlainContext:
    """What the scripts call, done by Keras alone.

    Args:
        backup: the directory of BackupAndRestore.
        save_freq: how often it saves.
    """

    def __init__(self, backup: str, save_freq: str | int) -> None:
        self._backup = backup
        self._save_freq = save_freq
        self._fits = 0

    def wrap_data(self, *data: Any) -> Any:
        """Return the data as it is."""
        return data[0] if len(data) == 1 else data

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer as it is."""
        return optimizer

    def fit(self, model: Any, *data: Any, callbacks: list[Any], **options: Any) -> Any:
        """Run `model.fit` with a backup of its own for each call."""
        import keras

        if not model.built:
            # BackupAndRestore asks for a built model.
            model(data[0][:1])
        directory = f"{self._backup}-{self._fits}"
        self._fits += 1
        # Kept, because a finished phase would else be trained again from its beginning after a kill in the next.
        backup = keras.callbacks.BackupAndRestore(
            directory, save_freq=self._save_freq, delete_checkpoint=False
        )
        return model.fit(*data, callbacks=[*callbacks, backup], **options)


def train(kind: str, folder: str, kill_at: int | None, side: str | int | None, pipe: Any) -> None:
    """Be one process of a training: die before a batch, or send its end."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        pipe.send(_end(kind, folder, kill_at, side))
    except Exception as error:
        pipe.send(End(error=f"{type(error).__name__}: {error}"))
    os._exit(0)


def _end(kind: str, folder: str, kill_at: int | None, side: str | int | None) -> End:
    import keras
    from kinds import KINDS, digest

    import det_keras as det

    callbacks = [] if kill_at is None else [_die_before(kill_at, 4 if kind == "steps_per_execution" else 1)]
    context: Any
    if side is None:
        config = {"min_checkpoint_period": {"batches": SAVE_EVERY}}
        context = det.keras.init(config=config, run_dir=folder, seed=11)
    else:
        keras.utils.set_random_seed(11)
        context = PlainContext(f"{folder}-backup", side)
    model, histories = KINDS[kind](context, callbacks)
    if side is None:
        context.close()
    weights = [keras.ops.convert_to_numpy(weight).astype("float64") for weight in model.weights]
    return End(digest(model, histories), weights, [[one.epoch, one.history] for one in histories])


def _die_before(batches: int, per_call: int) -> Any:
    """Return a callback that kills its process before a batch, counted over the whole script."""
    import signal

    import keras

    class Die(keras.callbacks.Callback):
        left = batches

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= per_call

    return Die()


def run(kind: str, folder: str, kill_at: int | None, side: str | int | None) -> End | None:
    """Run one process and return its end, None if it was killed."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(kind, folder, kill_at, side, there))
    process.start()
    there.close()
    try:
        end: End | None = here.recv()
    except EOFError:
        end = None
    process.join()
    return end


def compare(kind: str, root: Path, side: str | int | None) -> Row:
    """Kill once at each of the batches, resume, and compare the ends with the undisturbed one."""
    expected = run(kind, str(root / f"{kind}-{side}"), None, side)
    assert expected is not None
    assert expected.error is None, expected.error
    row = Row()
    for batch in KILLS:
        folder = str(root / f"{kind}-{side}-{batch}")
        killed = run(kind, folder, batch, side)
        assert killed is None, f"{kind} was not killed at batch {batch}: {killed.error}"
        end = run(kind, folder, None, side)
        assert end is not None
        if end.error is not None:
            print(f"{kind}, {side}: could not go on: {end.error}", file=sys.stderr)
            continue
        pairs = zip(end.weights, expected.weights, strict=True)
        row.ended += 1
        row.same += end.digest == expected.digest
        row.largest = max(row.largest, *(float(abs(a - b).max()) for a, b in pairs))
        row.other_histories += end.histories != expected.histories
    return row


def main() -> None:
    """Print the table."""
    import keras
    import tensorflow as tf

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kinds"])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(_TRAININGS), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    )
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    forkserver.ensure_running()
    print(
        f"Keras {keras.__version__}, TensorFlow {tf.__version__}; killed before batches {KILLS}, one kill a run\n"
    )
    measured = "same end | largest difference | other history"
    print(
        f"| Training | each epoch: {measured} | every {SAVE_EVERY} batches: {measured} | det_keras: same end |"
    )
    print("| --- |" + " --- |" * 7)
    with tempfile.TemporaryDirectory(prefix="det-backup-") as folder:
        os.environ["DET_KERAS_HOME"] = str(Path(folder) / "home")
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            rows = {
                (kind, side): pool.submit(compare, kind, Path(folder), side)
                for kind in TITLES
                for side in SIDES
            }
            for kind, title in TITLES.items():
                cells = [cell for side in SIDES for cell in rows[kind, side].result().cells()]
                # Where every end is the same there is no difference to tell.
                print("| " + " | ".join([title, *cells[:7]]) + " |", flush=True)


if __name__ == "__main__":
    main()
