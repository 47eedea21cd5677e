"""The state of a loop written by hand: the parts of its checkpoints, and how they are restored at a boundary."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.random_state import capture_streams, restore_streams
from det_keras.keras.loops.passes import Pass, SavedPass
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.loops.values import ReportedValues
from det_keras.keras.loops.workers import LoopWorkers
from det_keras.keras.random_ops.counters import random_counters
from det_keras.keras.training.parts import (
    InMemory,
    Part,
    RandomPart,
    ReachedPart,
    Saved,
    SavedState,
    WeightsPart,
)
from det_keras.keras.training.position import Position
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.written_files import WrittenFiles

_VALUES_NAME, _OBJECTS_NAME = "worker.npz", "worker.pkl"


class TrackedPart(Part):
    """What the tracked objects have besides the values of their variables.

    Args:
        tracked: the objects.
        workers: the workers.
    """

    def __init__(self, tracked: TrackedObjects, workers: LoopWorkers) -> None:
        self._tracked = tracked
        self._workers = workers

    def capture(self, directory: Path) -> Mapping[str, Any]:
        tracked = self._tracked
        entries = {
            "objects": tracked.build_configs(),
            "generators": tracked.generator_states(),
            "trainable": tracked.trainable_flags(),
        }
        return {"loop": entries}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        tracked = self._tracked
        np.savez(
            directory / _VALUES_NAME, *(np.asarray(variable.value) for variable in tracked.own_variables())
        )
        pickled = {name: pickle.loads(dump()) for name, dump in tracked.pickles().items()}
        (directory / _OBJECTS_NAME).write_bytes(pickle.dumps(pickled))
        return {"trained": self._workers.trained_rows, "generators": tracked.generator_states()}

    def pickles(self) -> Mapping[str, Callable[[], bytes]]:
        return self._tracked.pickles()

    def restore(self, saved: Saved) -> None:
        tracked, entries = self._tracked, saved.state["loop"]
        tracked.load_pickles(saved.pickles())
        tracked.assign_generators(entries["generators"])
        if saved.is_of_other_workers:
            self._workers.begin_anew()
        elif saved.own is not None:
            self._workers.trained_rows = saved.own["trained"]
            with np.load(saved.own_file(_VALUES_NAME)) as arrays:
                for index, variable in enumerate(tracked.own_variables()):
                    variable.assign(arrays[f"arr_{index}"])
            tracked.load_pickles(pickle.loads(saved.own_file(_OBJECTS_NAME).read_bytes()))
            tracked.assign_generators(saved.own["generators"])
        tracked.assign_trainable(entries["trainable"])


class ReportedPart(Part):
    """What the script has reported in the epoch; each worker has the sums of its own rows.

    Args:
        values: the reported values.
        tracked: the objects, among whose metrics are those that were reported.
        is_chief: whether this is the chief.
    """

    def __init__(self, values: ReportedValues, tracked: TrackedObjects, *, is_chief: bool) -> None:
        self._values = values
        self._tracked = tracked
        self._is_chief = is_chief

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {"loop": {"reported": self._values.get_state(self._tracked.all_metrics())}}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        return {"reported": self._values.get_state(self._tracked.all_metrics())}

    def restore(self, saved: Saved) -> None:
        metrics = self._tracked.all_metrics()
        if saved.own is not None:
            self._values.load_state(saved.own["reported"], metrics)
            return
        self._values.load_state(saved.state["loop"]["reported"], metrics)
        if saved.is_of_other_workers:
            # The workers add up what they have: all of it continues on the chief.
            all_of_them = [own["reported"] for own in saved.of_all_workers()]
            self._values.add_up(all_of_them or [saved.state["loop"]["reported"]], is_empty=not self._is_chief)


class LoopFilesPart(Part):
    """The files that the script has written in the loop; they are rewritten where its body begins and resumes.

    Args:
        files: the files.
    """

    def __init__(self, files: WrittenFiles) -> None:
        self._files = files

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return self._files.capture(directory)

    def restore(self, saved: Saved) -> None:
        self._files.rewrite(saved)


class PassesPart(Part):
    """The positions of the passes over the data, which the script asks for one after another in a resumed process.

    Args:
        is_chief: whether this worker's state is in the shared part of a checkpoint.

    Attributes:
        passes: the passes by name, in the order in which they were first read.
        current: name of the pass that was read last, in this epoch; None before the first.
        records: rows that were trained on.
    """

    def __init__(self, *, is_chief: bool) -> None:
        self.passes: dict[str, Pass] = {}
        self.current: str | None = None
        self.records = 0
        self._is_chief = is_chief

    @property
    def reads_generators(self) -> bool:
        """Whether this process has read a generator of the script, on which a later training may read."""
        return any(each.reads_generator for each in self.passes.values())

    def note_end(self) -> None:
        """Record how far the data was read, for later trainings."""
        for each in self.passes.values():
            each.note_end()

    def trained(self) -> Sequence[Pass]:
        """Return the passes that are trained on and that the script has asked for in this process."""
        return [each for each in self.passes.values() if each.is_loaded and each.options.is_training]

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {"loop": {"passes": self._states(directory / "data"), "records": self.records}}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        return {} if self._is_chief else {"passes": self._states(directory / "data")}

    def _states(self, directory: Path) -> dict[str, Any]:
        return {
            name: each.get_state(directory / str(index), is_current=name == self.current)
            for index, (name, each) in enumerate(self.passes.items())
        }


class DrawsPart(RandomPart):
    """The states of all that draws random numbers: as they are, and as they were when the epoch began.

    Args:
        tracked: the objects, some of which draw.
        reached: what they and the script lead to.
        progress: the progress of the loop.
        is_chief: whether this worker's state is in the shared part of a checkpoint.

    Attributes:
        of_epoch: the states when the epoch began.
    """

    def __init__(
        self, tracked: TrackedObjects, reached: ReachedPart, progress: Progress, *, is_chief: bool
    ) -> None:
        super().__init__(is_chief=is_chief)
        self.of_epoch: Mapping[str, Any] = {}
        self._tracked = tracked
        self._reached = reached
        self._progress = progress

    def begin_epoch(self) -> None:
        """Keep the states as they are now."""
        self.of_epoch = {
            "streams": capture_streams(),
            "counters": random_counters.get_state(),
            "tracked": self._tracked.draws(),
            "reached": self._reached.draws(),
        }

    def capture(self, directory: Path) -> Mapping[str, Any]:
        of_epoch = self.of_epoch if self._progress.position.step else None
        return {**super().capture(directory), "loop": {"epoch_draws": of_epoch}}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        return {**super().capture_own(directory), "epoch_draws": self.of_epoch}

    def restore_epoch(self, draws: Mapping[str, Any]) -> None:
        """Restore the states with which an epoch began."""
        self._tracked.assign_draws(draws["tracked"])
        self._reached.assign_draws(draws["reached"])
        # Checkpoints of earlier versions do not have the counters.
        random_counters.restore(draws.get("counters"))
        restore_streams(draws["streams"])


class LoopState:
    """The state of a boundary, to restore: from a checkpoint, or from memory where a loop continues in the same epoch.

    Args:
        weights: the part with the variables.
        parts: the parts that it consists of besides; random streams are the last one.
        draws: the part with the random streams.
        workers: the workers of this process.
        position: the boundary.
        found: the checkpoint; None for the state as it is now.
    """

    def __init__(
        self,
        weights: WeightsPart,
        parts: Sequence[Part],
        draws: DrawsPart,
        workers: DistributedContext,
        position: Position,
        found: SavedState | None = None,
    ) -> None:
        self.position = position
        self.is_from_memory = found is None
        self._parts = [weights, *parts]
        self._draws = draws
        self._found = found or InMemory([*parts, draws], weights, workers)
        self._of_epoch = draws.of_epoch
        self._workers = workers

    @property
    def epoch_draws(self) -> Mapping[str, Any]:
        """The states of all that draws random numbers, as they were when the epoch of the position began."""
        if self.is_from_memory:
            return self._of_epoch
        saved = self._saved()
        draws: Mapping[str, Any] = (saved.own or {}).get("epoch_draws") or saved.state["loop"]["epoch_draws"]
        return draws

    def restore(
        self, *, draws_of_epoch: bool, without: frozenset[str] = frozenset(), is_end: bool = False
    ) -> None:
        """Restore tracked objects, reported values and random streams; the streams last.

        Args:
            draws_of_epoch: restore what draws random numbers as it was when the epoch began, for the part of its body
                before the batches.
            without: names of streams that are not restored.
            is_end: it is the end of a loop that is skipped.
        """
        saved = self._saved()
        saved.drawn, saved.is_end = without, is_end
        for part in self._parts:
            part.restore(saved)
        if draws_of_epoch:
            self._draws.restore_epoch(self.epoch_draws)
        else:
            self._draws.restore(saved)

    def pass_state(self, key: str) -> SavedPass | None:
        """Return the state of a pass in the checkpoint; None if it has none."""
        saved = self._saved()
        passes: Mapping[str, Any] = saved.state["loop"]["passes"]
        if key not in passes:
            return None
        found = (saved.own or {}).get("passes", passes)[key]
        directory = saved.own_file("data") / str(list(passes).index(key))
        return SavedPass({**found, "source": saved.data_state(found["source"])}, directory)

    def _saved(self) -> Saved:
        return Saved(self._found, self._workers)
