"""Watching an experiment until it ends: a live bar on a terminal, one line per epoch elsewhere.

The master is polled. A request that fails because the master restarts is repeated.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from det_keras.cli.download import default_target
from det_keras.cli.following.logs import PATIENCE_S
from det_keras.cli.following.progress import Snapshot, best_validation, report_line
from det_keras.cli.following.trial_table import end_line, is_search, trial_table
from det_keras.cli.render import printable, write
from det_keras.cli.session import page_hint
from det_keras.connection.checkpoint_files import local_directory
from det_keras.display import hparams_text, metric_text, seconds_text, state_text
from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.states import CANCELED, COMPLETED, DELETED, ERROR, PAUSED, is_over, named

if TYPE_CHECKING:
    from det_keras.client import Session

T = TypeVar("T")

_PERIOD_S = 0.5
_LOG_LINES = 30
_LINE_PERIOD_S = 10.0
# Reports of a trial that a list may answer again: as many as checkpoints that are reported late.
_MOST_REPEATED = 100
_INTERRUPTED = 130
_MODEL_FILE = "model.keras"
# The bar, the table's header, the line about trials without a row, and the prompt.
_LINES_AROUND_TABLE = 5
_FEWEST_ROWS = 3

_Trials = list[dict[str, Any]]


def follow(session: Session, experiment_id: int) -> int:
    """Show the progress of an experiment until it ends; return 0 if it completed.

    An interrupt ends the display, not the experiment.
    """
    try:
        with _display() as display:
            experiment, trials = _watch(session, experiment_id, display)
    except KeyboardInterrupt:
        print(
            f"Experiment {experiment_id} continues. "
            f"Follow it again with `det experiment logs -f {experiment_id}`.",
            file=sys.stderr,
        )
        return _INTERRUPTED
    return _conclude(session, experiment, trials)


def wait(session: Session, experiment_id: int, period_s: float) -> str:
    """Wait until an experiment ends or is paused; return its state.

    Args:
        session: of the experiment's master.
        experiment_id: number of the experiment.
        period_s: time between two requests, in seconds.
    """
    while True:
        state = str(_patiently(lambda: session.api.experiments.get(experiment_id))["state"])
        if is_over(state) or state == named(PAUSED):
            return state
        time.sleep(period_s)


def first_trial(session: Session, experiment_id: int, *, wait_for_it: bool) -> int | None:
    """Return the lowest trial id of an experiment; None if it has no trials.

    Args:
        session: of the experiment's master.
        experiment_id: number of the experiment.
        wait_for_it: wait for the first trial, until the experiment ends.
    """
    while True:
        trials = _patiently(lambda: session.api.experiments.trials(experiment_id))
        if trials:
            return min(int(trial["id"]) for trial in trials)
        experiment = _patiently(lambda: session.api.experiments.get(experiment_id))
        if not wait_for_it or is_over(experiment["state"]):
            return None
        time.sleep(_PERIOD_S)


def _watch(session: Session, experiment_id: int, display: _Display) -> tuple[dict[str, Any], _Trials]:
    while True:
        experiment = _patiently(lambda: session.api.experiments.get(experiment_id))
        trials = _patiently(lambda: session.api.experiments.trials(experiment_id))
        display.show(session, experiment, trials)
        if is_over(experiment["state"]):
            return experiment, trials
        time.sleep(_PERIOD_S)


def _patiently(request: Callable[[], T]) -> T:
    """Repeat a request until the master answers: it may be restarting."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return request()
        except MasterUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PERIOD_S)


def _conclude(session: Session, experiment: Mapping[str, Any], trials: _Trials) -> int:
    """Print how the experiment ended; return the exit code."""
    state, number = str(experiment["state"]), experiment["id"]
    failed = [trial for trial in trials if trial["state"] == named(ERROR)]
    if state == named(ERROR) and failed:
        _print_last_lines(session, failed[-1]["id"])
    elif failed:
        print(f"{len(failed)} of {len(trials)} trials failed.")
    print(f"Experiment {number} {_OUTCOMES.get(state, 'ended as ' + state_text(state))}.")
    best = best_validation(experiment, trials)
    if best is not None:
        value = metric_text(best.value)
        print(f"Best {printable(best.metric)}: {value} (trial {best.trial_id}, batch {best.batches})")
        if is_search(experiment):
            hparams = next(trial["hparams"] for trial in trials if trial["id"] == best.trial_id)
            print(f"Its hyperparameters: {printable(hparams_text(hparams))}")
    checkpoint = _best_checkpoint(session, number)
    if checkpoint is not None:
        print(f"Best checkpoint: {checkpoint['uuid']}")
    for line in _next_steps(session, number, checkpoint):
        print(line)
    return 0 if state == named(COMPLETED) else 1


_OUTCOMES = {
    named(COMPLETED): "completed",
    named(CANCELED): "was cancelled",
    named(ERROR): "failed",
    named(DELETED): "was deleted",
}


def _print_last_lines(session: Session, trial_id: int) -> None:
    lines = session.api.trial_logs(trial_id).tail(_LOG_LINES)
    if not lines:
        return
    print(f"The log of trial {trial_id} ends with:")
    for line in lines:
        write("  " + str(line["message"]).rstrip("\n") + "\n", sys.stdout)


def _next_steps(session: Session, experiment_id: int, checkpoint: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield lines about the next steps: the page, and the code to load the best model."""
    yield f"Its page: {page_hint(session, experiment_id)}"
    if checkpoint is None or _MODEL_FILE not in (checkpoint.get("resources") or {}):
        return
    uuid = str(checkpoint["uuid"])
    directory = local_directory(checkpoint)
    if directory is None:
        yield f"Get its best model: det checkpoint download {uuid}"
        directory = default_target(uuid)
    yield f"Load its best model: keras.models.load_model({str(directory / _MODEL_FILE)!r})"


def _best_checkpoint(session: Session, experiment_id: int) -> dict[str, Any] | None:
    order = {"sortByAttr": "SORT_BY_SEARCHER_METRIC", "states": [named(COMPLETED)], "limit": 1, "offset": 0}
    try:
        found = session.api.experiments.checkpoints(experiment_id, **order)
    except MasterError:
        # The experiment was deleted in the meantime.
        return None
    return dict(found[0]) if found else None


class _Display:
    """Shows an experiment's changes; one subclass per kind of output."""

    def __init__(self) -> None:
        self._restarts: dict[int, int] = {}
        self._ended: set[int] = set()
        self._was_paused = False

    def __enter__(self) -> _Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, session: Session, experiment: Mapping[str, Any], trials: _Trials) -> None:
        """Show the current state of the experiment."""
        raise NotImplementedError

    def events(self, experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return lines about changes since the last call."""
        found = []
        is_paused = experiment["state"] == named(PAUSED)
        if is_paused and not self._was_paused:
            number = experiment["id"]
            found.append(f"Experiment {number} is paused. `det experiment activate {number}` resumes it.")
        self._was_paused = is_paused
        allowed = experiment["config"].get("max_restarts")
        for trial in trials:
            number, restarts = int(trial["id"]), int(trial["restarts"])
            if restarts > self._restarts.get(number, 0) and trial["state"] != named(ERROR):
                found.append(f"Trial {number} failed and is restarted (restart {restarts} of {allowed}).")
            self._restarts[number] = restarts
            if is_over(trial["state"]) and number not in self._ended:
                self._ended.add(number)
                if is_search(experiment):
                    found.append(printable(end_line(experiment, trial)))
        return found


class _Lines(_Display):
    """One line per epoch, and per validation between epochs, for files and pipes.

    Training and validation of the same batch are two reports but one line. A line therefore waits for both, for a
    report of a later batch, or for the end of the trial.
    """

    def __init__(self) -> None:
        super().__init__()
        self._offsets: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._lines_at: dict[int, float] = {}
        self._seen: dict[int, tuple[Any, ...]] = {}
        # The reports of a trial's newest batch by kind, while more may follow.
        self._waiting: dict[int, dict[str, Mapping[str, Any]]] = {}
        self._taken: dict[int, deque[tuple[str, Mapping[str, Any]]]] = {}
        self._paces: dict[int, Mapping[str, Any] | None] = {}

    def show(self, session: Session, experiment: Mapping[str, Any], trials: _Trials) -> None:
        happened = self.events(experiment, trials)
        has_ended = is_over(experiment["state"])
        for trial in trials:
            self._show_trial(session, trial, with_trial=is_search(experiment))
            if has_ended or is_over(trial["state"]):
                self._print_waiting(int(trial["id"]), with_trial=is_search(experiment))
        for line in happened:
            print(line)
        sys.stdout.flush()

    def _show_trial(self, session: Session, trial: Mapping[str, Any], *, with_trial: bool) -> None:
        number = int(trial["id"])
        self._paces[number] = trial.get("pace")
        latest = trial.get("latestValidation") or {}
        summary = (trial.get("summaryMetrics") or {}).get("avg_metrics")
        mark = (trial["state"], trial["totalBatchesProcessed"], latest.get("endTime"), summary)
        # Requesting the reports of every trial of a large search twice a second would be most of the traffic.
        if self._seen.get(number) == mark:
            return
        self._seen[number] = mark
        offset = self._offsets.get(number, 0)
        # After a restart the reports after the checkpoint are removed, and made again.
        workloads, self._offsets[number] = _patiently(
            lambda: session.api.trials.workloads(number, offset=offset)
        )
        for workload in workloads:
            for kind in ("training", "validation"):
                if workload.get(kind) and not self._is_taken(number, kind, workload[kind]):
                    self._take(number, kind, workload[kind], with_trial=with_trial)

    def _is_taken(self, trial_id: int, kind: str, report: Mapping[str, Any]) -> bool:
        """Return whether this report was answered before, and remember it.

        The list is in the order of batches. A checkpoint that is reported late comes before newer reports, whose places
        in the list change: the next answer begins with them again.
        """
        taken = self._taken.setdefault(trial_id, deque(maxlen=_MOST_REPEATED))
        if (kind, report) in taken:
            return True
        taken.append((kind, report))
        return False

    def _take(self, trial_id: int, kind: str, report: Mapping[str, Any], *, with_trial: bool) -> None:
        waiting = self._waiting.get(trial_id, {})
        if any(
            kind == other or report["totalBatches"] != waiting[other]["totalBatches"] for other in waiting
        ):
            self._print_waiting(trial_id, with_trial=with_trial)
        waiting = self._waiting.setdefault(trial_id, {})
        waiting[kind] = report
        if len(waiting) == len(("training", "validation")):
            self._print_waiting(trial_id, with_trial=with_trial)

    def _print_waiting(self, trial_id: int, *, with_trial: bool) -> None:
        reports = self._waiting.pop(trial_id, {})
        if reports and self._is_worth_a_line(trial_id, reports):
            pace = self._paces.get(trial_id)
            print(printable(report_line(trial_id, reports, with_trial=with_trial, pace=pace)))

    def _is_worth_a_line(self, trial_id: int, reports: Mapping[str, Mapping[str, Any]]) -> bool:
        is_new = "training" in reports and self._is_new(trial_id, reports["training"])
        return is_new or "validation" in reports

    def _is_new(self, trial_id: int, report: Mapping[str, Any]) -> bool:
        epochs = report["metrics"]["avgMetrics"].get("epochs")
        if not isinstance(epochs, int | float):
            # A script that does not count epochs may report every batch.
            is_due = time.monotonic() - self._lines_at.get(trial_id, -_LINE_PERIOD_S) >= _LINE_PERIOD_S
            self._lines_at[trial_id] = time.monotonic() if is_due else self._lines_at[trial_id]
            return is_due
        is_new = epochs > self._epochs.get(trial_id, 0)
        self._epochs[trial_id] = max(int(epochs), self._epochs.get(trial_id, 0))
        return is_new


class _Live(_Display):
    """A progress bar and, for a search, a table of its trials; for terminals."""

    def __init__(self) -> None:
        super().__init__()
        # Imported here: only this display needs rich.
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.table import Column

        self._progress = Progress(
            TextColumn("{task.fields[state]}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            # On a narrow terminal the metrics are cut off first.
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            TextColumn("{task.fields[left]}", markup=False),
            # The mean speed of the whole run, since reports of epochs are rare.
            speed_estimate_period=3600,
        )
        self._task = self._progress.add_task("", total=1.0, state="WAITING", text="", left="")
        self._table: Any = None
        self._live = Live(get_renderable=self._renderable, refresh_per_second=4)

    def __enter__(self) -> _Display:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, session: Session, experiment: Mapping[str, Any], trials: _Trials) -> None:
        for line in self.events(experiment, trials):
            self._live.console.print(line, markup=False, highlight=False)
        snapshot = Snapshot.take(experiment, trials)
        self._progress.update(
            self._task,
            completed=snapshot.fraction,
            state=state_text(snapshot.state),
            text=printable(snapshot.text),
        )
        self._progress.update(self._task, left=self._left(snapshot))
        if is_search(experiment):
            most_rows = max(_FEWEST_ROWS, self._live.console.height - _LINES_AROUND_TABLE)
            self._table = trial_table(experiment, trials, most_rows)

    def _left(self, snapshot: Snapshot) -> str:
        """Return the time until the end; "" if it is not known."""
        seconds = snapshot.seconds_left
        if seconds is None and snapshot.estimates:
            seconds = self._progress.tasks[0].time_remaining
        return "" if seconds is None else f"about {seconds_text(seconds)} left"

    def _renderable(self) -> Any:
        from rich.console import Group

        bar = self._progress.get_renderable()
        return bar if self._table is None else Group(bar, self._table)


def _display() -> _Display:
    return _Live() if sys.stdout.isatty() else _Lines()
