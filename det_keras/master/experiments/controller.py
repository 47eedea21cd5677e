"""The controller of an experiment whose trials the master runs, within one transaction.

Every event of an experiment is applied here: a user's request, a report, the end of a process. The decisions of the
search about the event are applied and written in the same transaction. A master that is killed at any time therefore
finds in the database all that it needs to continue.

The transaction holds the writers' lock, so no other thread changes the experiment between two statements here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from det_keras import search
from det_keras.master import lifecycle
from det_keras.master.accounts.audit import killer
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.notifier import DELETIONS, SETTLING, WORK
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments.base import Controller, early_exit_reason
from det_keras.master.experiments.search_state import SearchState
from det_keras.master.experiments.trial_rows import MOST_ENDED, MOST_MOVED, TrialRows
from det_keras.master.lifecycle import Ending, Exit, ExitedRun, Verdict
from det_keras.master.tasks import allocations
from det_keras.master.tasks.logs import note
from det_keras.protocol import states
from det_keras.protocol.metrics import number
from det_keras.protocol.values import now
from det_keras.search import Action, Close, Create, ExitedReason, Searcher, Shutdown, Stop, ValidateAfter

logger = logging.getLogger(__name__)

# How long a process that refused its hyperparameters may take to exit, in seconds.
_EARLY_EXIT_GRACE_S = 10.0
_EARLY_ENDS = {states.CANCELED: ExitedReason.USER_CANCELED, states.ERROR: ExitedReason.ERRORED}
_STOPPED_AT_ONCE = (states.STOPPING_KILLED, states.STOPPING_ERROR)


class ExperimentController(Controller):
    """Decides about one experiment and its trials.

    Args:
        tx: the transaction of the event; all changes are written in it.
        experiment: the experiment's row in `tx`.
    """

    def __init__(self, tx: Transaction, experiment: ExperimentRow) -> None:
        self._tx = tx
        self._experiment = experiment
        self._config = config_of(experiment)
        self._search = SearchState(tx, experiment)
        self._trials = TrialRows(tx, experiment)

    @property
    def searcher(self) -> Searcher:
        """The experiment's searcher, in its state after the last event."""
        return self._search.searcher

    def begin(self) -> None:
        """Start the search, which creates its first trials."""
        self._apply_event("initial")

    def activate(self) -> None:
        """Let the experiment run.

        Raises:
            FailedPreconditionError: the experiment has ended or is stopping.
        """
        if _enter(self._experiment, states.ACTIVE):
            self.settle()

    def pause(self) -> None:
        """Request all trials to take a checkpoint and stop, to be resumed later.

        Raises:
            FailedPreconditionError: the experiment has ended or is stopping.
        """
        if _enter(self._experiment, states.PAUSED):
            self.settle()

    def stop(self, stopping: str) -> None:
        """End the experiment through the state `stopping`; no effect if it has ended or is in a more severe state."""
        state = self._experiment.state
        if state != stopping and lifecycle.experiment_may_become(state, stopping):
            self._experiment.state = stopping
            self.settle()
        else:
            self._end_if_idle()

    def settle(self) -> None:
        """Let the trials follow the experiment's state: those with a process, and the next of those that wait.

        The other waiting trials follow in transactions of their own, so that other writers have their turns in between.
        What is still to be done follows from the states alone, so a master that is killed in between continues.
        """
        self._end_closed()
        state = self._experiment.state
        unsettled = lifecycle.unsettled_states(state)
        is_stopping = states.is_stopping(state)
        for trial in self._trials.running(unsettled):
            if is_stopping:
                self.stop_trial(trial, state)
            else:
                trial.state = state
                if state == states.PAUSED:
                    self._preempt(trial)
        # They have nothing to report to a search, which receives no events of an experiment that is being stopped.
        moved = self._trials.move_waiting(unsettled, lifecycle.terminal_of(state) if is_stopping else state)
        if moved == MOST_MOVED:
            self._tx.notify(SETTLING)
        self._tx.notify(WORK)
        self._end_if_idle()

    def stop_trial(self, trial: TrialRow, stopping: str) -> None:
        """End one trial through the state `stopping`; no effect if it has ended or is in a more severe state."""
        if not lifecycle.trial_may_become(trial.state, stopping):
            return
        trial.state = stopping
        allocation = allocations.live_allocation(self._tx, trial.task_id)
        if allocation is None:
            state = lifecycle.terminal_of(stopping)
            self._finish(trial, state, _EARLY_ENDS.get(state))
        elif stopping in _STOPPED_AT_ONCE:
            allocations.kill(self._tx, allocation)
        else:
            self._preempt(trial)

    @property
    def slots_per_trial(self) -> int:
        """Number of slots of each trial."""
        return self._config.resources.slots_per_trial

    def give_up(self, trial: TrialRow, reason: str) -> None:
        """End a trial that cannot be run again.

        Args:
            trial: a trial without a process.
            reason: for its log, such as "its machine is gone".
        """
        note(self._tx, trial.task_id, f"Trial {trial.id} is not run again: {reason}.", "ERROR")
        self.stop_trial(trial, states.STOPPING_ERROR)

    def run_ended(self, trial: TrialRow, exit_: Exit) -> None:
        """Decide what the end of a trial's run means, and apply it."""
        run = ExitedRun(
            state=trial.state,
            is_invalid_hp=trial.early_exit is not None,
            is_retry_cancelled=trial.is_retry_cancelled,
            is_out_of_work=trial.is_closed and not self.searcher.has_work(trial.request_id),
            is_waiting=self._is_waiting(trial),
            restarts=trial.restarts,
            max_restarts=self._config.max_restarts,
            lost_runs=trial.lost_runs,
            lacks_validation=self.searcher.method.compares_trials
            and not _has_metric(self._trials, trial, self._config.searcher.metric),
        )
        verdict = lifecycle.judge_exit(run, exit_)
        trial.runner_state = ""
        trial.lost_runs = trial.lost_runs + 1 if exit_.is_interrupted else 0
        if verdict is Verdict.RESTART:
            trial.restarts += 1
        if verdict in (Verdict.RESTART, Verdict.RELAUNCH) and trial.is_closed:
            # It failed after its last length: run it again, so that the script can finish.
            trial.has_work = True
        _explain(self._tx, trial, exit_, verdict, self._config.max_restarts)
        if verdict is Verdict.FAIL:
            self._finish(trial, states.ERROR, ExitedReason.ERRORED)
        elif verdict is Verdict.CANCEL:
            self._finish(trial, states.CANCELED, ExitedReason.USER_CANCELED)
        elif verdict is Verdict.COMPLETE:
            self._finish(trial, states.COMPLETED, None)
        elif verdict is Verdict.COMPLETE_INVALID_HP:
            self._finish(trial, states.COMPLETED, ExitedReason(trial.early_exit))
        self._tx.notify(WORK)

    def early_exit(self, trial: TrialRow, reason: str) -> None:
        """Record that a trial's script refused its hyperparameters; its process has a short time to exit.

        Raises:
            InvalidArgumentError: `reason` is unknown.
        """
        exited_reason = early_exit_reason(reason)
        if trial.state in states.TERMINAL or trial.early_exit is not None:
            return
        trial.early_exit = exited_reason.value
        allocation = allocations.live_allocation(self._tx, trial.task_id)
        if allocation is not None:
            allocations.kill(self._tx, allocation, after_s=_EARLY_EXIT_GRACE_S)

    def validated(self, trial: TrialRow, metrics: Mapping[str, object]) -> None:
        """Pass a validation to the search; a validation that the search cannot use ends the trial."""
        name = self._config.searcher.metric
        metric = number(metrics.get(name))
        missing = _missing_metric(self.searcher, name, metric, metrics)
        if missing:
            self._refuse(trial, f"{missing}; the reported metrics are {_quoted(metrics)}.")
            return
        assert metric is not None
        # Warn at the first such validation only; it is stored already.
        if (
            not math.isfinite(metric)
            and len(self._trials.validations(trial, lambda row: not _is_finite(row, name))) == 1
        ):
            note(self._tx, trial.task_id, f"`{name}` is {metric}, which ranks after every number.", "WARNING")
        if not self.searcher.method.gives_lengths:
            self._apply_event("validation_reported", trial.request_id, metric, self._times(metrics))
        elif self.searcher.method.compares_trials:
            self._complete_length(trial, metric, metrics)

    def operation_completed(
        self, trial: TrialRow, length: int, metric: float, metrics: Mapping[str, object]
    ) -> None:
        """Record that a trial reached its length; a second report of the same length changes nothing.

        Args:
            trial: a trial of the experiment.
            length: in the unit of the config's ``max_length``.
            metric: the searcher's metric at that length.
            metrics: all metrics of the same validation.

        Raises:
            InvalidArgumentError: the trial was given another length.
        """
        operation = self.searcher.operation(trial.request_id)
        is_known = operation is not None and (
            length < operation.length or (length == operation.length and operation.completed)
        )
        if is_known:
            return
        # Checked before the event: there, an error is one of the search method and ends the experiment.
        try:
            self.searcher.open_operation(trial.request_id, length)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
        trial.has_work = False
        self._apply_event("operation_completed", trial.request_id, length, metric, self._times(metrics))

    def operation(self, trial: TrialRow) -> search.Operation | None:
        """Return the length that a trial has to reach; None if the search gives no lengths."""
        operation = self.searcher.operation(trial.request_id)
        if operation is not None and states.is_stopping(trial.state):
            # The search of an experiment that is being ended receives no more events. A script that asks for the next
            # length would complete this one forever.
            return replace(operation, completed=True)
        return operation

    def progressed(self, trial: TrialRow, progress: float, *, is_fraction: bool) -> None:
        """Record the progress of a trial; the experiment's progress never decreases.

        Args:
            trial: a trial of the experiment.
            progress: 0 to 1 with `is_fraction`, otherwise in the unit of the config's ``max_length``.
            is_fraction: whether `progress` is a fraction.
        """
        operation = self.searcher.operation(trial.request_id)
        length = operation.length if operation is not None else 1
        in_units = progress * length if is_fraction else progress
        trial.progress = min(1.0, max(0.0, in_units / length))
        self._apply_event("progress_reported", trial.request_id, in_units)

    def _is_waiting(self, trial: TrialRow) -> bool:
        """Return whether a trial reached its length, trained no further, and may get a longer length."""
        operation = self.searcher.operation(trial.request_id)
        if operation is None or not operation.completed or trial.is_closed:
            return False
        length, unit = operation.length, self._length_unit
        return not self._trials.validations(trial, lambda metrics: (number(metrics.get(unit)) or 0) > length)

    def _refuse(self, trial: TrialRow, text: str) -> None:
        """Log what is wrong with a validation; if the search needs the metric, end the trial."""
        if self.searcher.method.needs_metric:
            note(self._tx, trial.task_id, text, "ERROR")
            self.stop_trial(trial, states.STOPPING_ERROR)
        elif trial.searcher_metric_value is None:
            note(self._tx, trial.task_id, text, "WARNING")

    def _complete_length(self, trial: TrialRow, metric: float, metrics: Mapping[str, object]) -> None:
        """Complete the trial's length by a validation, since some scripts do not request lengths."""
        operation = self.searcher.operation(trial.request_id)
        reached = number(metrics.get(self._length_unit))
        if operation is None or reached is None:
            return
        if not operation.completed and reached >= operation.length:
            self.operation_completed(trial, operation.length, metric, metrics)
        elif operation.completed and reached > operation.length:
            # It trains beyond its length, on slots that other trials could use.
            self._preempt(trial)

    def _complete_length_from_reports(self, trial: TrialRow) -> None:
        """Complete the length of a trial whose script has ended, from its earlier reports."""
        method = self.searcher.method
        if not (method.gives_lengths and method.compares_trials):
            return
        operation = self.searcher.operation(trial.request_id)
        if operation is None or operation.completed:
            return
        length, unit, name = operation.length, self._length_unit, self._config.searcher.metric
        rows = self._trials.validations(
            trial, lambda row: (number(row.get(unit)) or 0) >= length and number(row.get(name)) is not None
        )
        if rows:
            value = number(rows[0][name])
            assert value is not None
            self.operation_completed(trial, length, value, rows[0])
        else:
            self._apply_event("gave_up", trial.request_id)

    @property
    def _length_unit(self) -> str:
        length = self._config.searcher.max_length
        return "" if length is None else length.unit.value

    def _times(self, metrics: Mapping[str, object]) -> dict[str, object]:
        """Return what a search reads of the metrics besides its own."""
        name = self.searcher.method.time_metric
        return {} if name is None or name not in metrics else {name: metrics[name]}

    def _apply_event(self, event: str, *arguments: object) -> None:
        """Pass an event to the search, which records it, and apply the decisions."""
        if self._experiment.state not in states.GOING_ON:
            # The experiment is being stopped. If it is continued later, the search resumes from its state before.
            return
        try:
            actions = self._search.apply(event, *arguments)
        except Exception:
            # An error in a search method must not stop the master; only the experiment ends.
            logger.exception("The search of experiment %s failed; the experiment ends.", self._experiment.id)
            self.stop(states.STOPPING_ERROR)
            return
        self._apply_all(actions)
        if self._experiment.state not in states.TERMINAL:
            self._experiment.progress = max(self._experiment.progress, self.searcher.progress())

    def _apply_all(self, actions: Iterable[Action]) -> None:
        rest = deque(actions)
        while rest:
            new = _take_new(rest)
            closed = [] if new else _take_closed(rest)
            if new:
                self._create_trials(new)
            elif closed:
                self._trials.close(closed)
                self._end_closed()
            else:
                self._apply(rest.popleft())

    def _apply(self, action: Action) -> None:
        if isinstance(action, Shutdown):
            self._shut_down(action)
        elif isinstance(action, Stop):
            self.stop_trial(self._trials.with_request_id(action.request_id), states.STOPPING_COMPLETED)
        else:
            assert isinstance(action, ValidateAfter), action
            self._lengthen(self._trials.with_request_id(action.request_id))

    def _lengthen(self, trial: TrialRow) -> None:
        if trial.state in states.TERMINAL:
            self._complete_length_from_reports(trial)
            return
        trial.has_work = True
        self._tx.notify(WORK)

    def _end_closed(self) -> None:
        """End the next of the trials that wait for a longer length and get none; the settler ends the others."""
        if self._experiment.state not in states.GOING_ON:
            return
        ready = self._trials.closed_and_idle()
        for trial in ready:
            # What the search decides about one of them may end the experiment, and the others with it.
            if trial.state in states.GOING_ON:
                self._finish(trial, states.COMPLETED, None)
        if len(ready) == MOST_ENDED:
            self._tx.notify(SETTLING)

    def _create_trials(self, actions: Sequence[Create | ValidateAfter | Close]) -> None:
        """Create trials; a new trial has work, so of what else is said of it only its end changes its row."""
        creates = [action for action in actions if isinstance(action, Create)]
        closed = {action.request_id for action in actions if isinstance(action, Close)}
        self._trials.add_all(
            [
                {
                    "request_id": action.request_id,
                    "state": self._experiment.state,
                    "hparams": dict(action.hparams),
                    "seed": action.seed,
                    "warm_start_uuid": self._experiment.warm_start_uuid,
                    "is_closed": action.request_id in closed,
                }
                for action in creates
            ],
            context=self._experiment.context,
            slots=self._config.resources.slots_per_trial,
        )
        self._tx.notify(WORK)
        self._apply_all(self._search.apply("trials_created", [action.request_id for action in creates]))

    def _shut_down(self, action: Shutdown) -> None:
        if action.reason:
            logger.warning("The search of experiment %s ends. %s", self._experiment.id, action.reason)
            newest = self._trials.newest()
            if newest is not None:
                note(self._tx, newest.task_id, action.reason, "ERROR")
        stopping = states.STOPPING_COMPLETED
        if action.failure:
            stopping = states.STOPPING_ERROR
        elif action.cancel:
            stopping = states.STOPPING_CANCELED
        self.stop(stopping)

    def _finish(self, trial: TrialRow, state: str, early: ExitedReason | None) -> None:
        """Set a trial without a process to its final state, and inform the search."""
        trial.state = state
        self._trials.set_end(trial, now())
        request_id = trial.request_id
        if early is not None:
            self._apply_event("trial_exited_early", request_id, early)
        else:
            self._complete_length_from_reports(trial)
        self._apply_event("trial_exited", request_id)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        """End a stopping experiment that has no unfinished trial."""
        experiment = self._experiment
        if not states.is_stopping(experiment.state) or self._trials.has_unfinished():
            return
        experiment.state = lifecycle.terminal_of(experiment.state)
        experiment.end_time = now()
        experiment.is_pruning_due = True
        if experiment.state == states.COMPLETED:
            experiment.progress = 1.0
        self._search.end()
        self._tx.notify(DELETIONS)

    def _preempt(self, trial: TrialRow) -> None:
        allocation = allocations.live_allocation(self._tx, trial.task_id)
        if allocation is not None:
            allocations.preempt(self._tx, allocation, self._config.preemption_timeout)


def _enter(experiment: ExperimentRow, wanted: str) -> bool:
    """Set the experiment's state; return whether it was another one."""
    if experiment.state == wanted:
        return False
    if not lifecycle.experiment_may_become(experiment.state, wanted):
        raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")
    experiment.state = wanted
    return True


def _take_new(rest: deque[Action]) -> Sequence[Create | ValidateAfter | Close]:
    """Take trials to create from the front, with what is said of them."""
    new: set[str] = set()
    taken: list[Create | ValidateAfter | Close] = []
    while rest:
        action = rest[0]
        if isinstance(action, Create):
            new.add(action.request_id)
        elif not (isinstance(action, (ValidateAfter, Close)) and action.request_id in new):
            break
        taken.append(action)
        rest.popleft()
    return taken


def _take_closed(rest: deque[Action]) -> Sequence[str]:
    """Take trials that get no further length from the front."""
    taken: list[str] = []
    while rest and isinstance(action := rest[0], Close):
        taken.append(action.request_id)
        rest.popleft()
    return taken


def _explain(tx: Transaction, trial: TrialRow, exit_: Exit, verdict: Verdict, max_restarts: int) -> None:
    """Write into the trial's log what the end of its run means, unless it is a plain success."""
    what = f"Trial {trial.id} " + (
        f"exited with code {exit_.code}" if exit_.ending is Ending.EXITED else f"stopped: {exit_.detail}"
    )
    if exit_.is_killed:
        by = killer(
            tx,
            [("trial", trial.id), ("experiment", trial.experiment_id)],
            allocations.last_start(tx, trial.task_id),
        )
        note(tx, trial.task_id, f"Trial {trial.id} was killed by {by or 'the master'}.")
    elif verdict is Verdict.RESTART:
        count = f"restart {trial.restarts} of {max_restarts}"
        note(tx, trial.task_id, f"{what} and is run again ({count}).", "WARNING")
    elif verdict is Verdict.RELAUNCH and exit_.is_failure:
        note(tx, trial.task_id, f"{what} and is run again; no restart is counted.", "WARNING")
    elif verdict is Verdict.FAIL and trial.is_retry_cancelled:
        # The words of Determined, for which its tests and people look.
        policy = f"trial failed and matched logs to a don't retry policy ({trial.log_policy_matched})"
        note(tx, trial.task_id, f"{what} and is not run again: {policy}.", "ERROR")
    elif verdict is Verdict.FAIL:
        note(tx, trial.task_id, f"{what} and is not run again.", "ERROR")
    elif exit_.ending is Ending.LOST:
        note(tx, trial.task_id, f"{what}. It was to stop anyway.", "WARNING")


def _has_metric(trials: TrialRows, trial: TrialRow, name: str) -> bool:
    """Return whether a trial reported the searcher's metric, even if it was NaN."""
    if trial.searcher_metric_value is not None:
        return True
    return bool(trials.validations(trial, lambda metrics: number(metrics.get(name)) is not None))


def _missing_metric(
    searcher: Searcher, name: str, metric: float | None, metrics: Mapping[str, object]
) -> str:
    """Return which metric the search needs and a validation lacks; empty if none is missing."""
    if metric is None:
        # Keras adds this prefix to metrics of validation data.
        is_near = number(metrics.get(f"val_{name}")) is not None
        hint = f" (it has one under `val_{name}`: set `searcher.metric: val_{name}`)" if is_near else ""
        return f"The validation has no number under the searcher's metric `{name}`{hint}"
    time_metric = searcher.method.time_metric
    time = None if time_metric is None else number(metrics.get(time_metric))
    if time_metric is not None and (time is None or not math.isfinite(time)):
        return f"The validation has no finite number under the searcher's time metric `{time_metric}`"
    return ""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _is_finite(metrics: Mapping[str, object], name: str) -> bool:
    value = number(metrics.get(name))
    return value is None or math.isfinite(value)
