"""The thread that runs copies of trials on slots that nothing else uses, and records what their comparison found.

A copy does not take part in the queue. For the scheduler its slots are free, so a copy delays no task: when the
scheduler gives a slot to a task, the task starts at once and the copy is killed. It is tried again later, a few times.

The row of a verification is written before its copy is started. A master that is killed in between finds a copy that
was never launched, and starts another one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from det_keras.home import Home
from det_keras.master.accounts.auth import Accounts
from det_keras.master.checkpoints import verification
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import VerificationRow
from det_keras.master.database.notifier import VERIFICATIONS, Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources import ResourcePool, Share, State
from det_keras.master.services.background import Background
from det_keras.master.services.launching import Launcher, result_file
from det_keras.master.tasks.live_queue import LiveQueue

logger = logging.getLogger(__name__)

# The periods of looking at copies, and for free slots; without a verification the thread sleeps.
_LOOK_S, _WAIT_S = 0.2, 1.0
# How often a copy is started that something else ends: a task that gets its slots, or a restart of the master.
_MOST_ATTEMPTS = 3
_KILLED = 137


class Verifier(Background):
    """Runs the copies of trials, and records their results.

    Args:
        home: the data root; the files of copies are beside the logs of tasks.
        store: the database.
        pool: where copies run.
        launcher: prepares their launches.
        accounts: manages their tokens.
        queue: knows which slots are free.
        notifier: the source of events.
    """

    def __init__(
        self,
        home: Home,
        store: Store,
        pool: ResourcePool,
        launcher: Launcher,
        accounts: Accounts,
        queue: LiveQueue,
        notifier: Notifier,
    ) -> None:
        self._home = home
        self._store = store
        self._pool = pool
        self._launcher = launcher
        self._accounts = accounts
        self._queue = queue
        self._pause_s: float | None = _LOOK_S
        super().__init__("verifier", notifier, VERIFICATIONS)

    def stop(self) -> None:
        """End the thread and the copies; the next start begins them anew."""
        super().stop()
        try:
            with self._store.reading() as session:
                running = [
                    row
                    for row in verification.open_verifications(session)
                    if row.state == verification.RUNNING
                ]
        except UnavailableError:
            return
        for row in running:
            self._pool.kill(verification.copy_id(row), force=True)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._pause_s)
            self._wake.clear()
            try:
                self.step()
            except UnavailableError:
                # The database is away; it says so by itself.
                self._wait_for_stop()
            except Exception:
                # No experiment depends on it, so another round is soon enough.
                logger.exception("A verification failed; it will be repeated.")
                self._wait_for_stop()

    def step(self) -> None:
        """Look at each open verification once, and start, end or settle its copy."""
        with self._store.reading() as session:
            rows = verification.open_verifications(session)
        is_running = any(row.state == verification.RUNNING for row in rows)
        self._pause_s = None if not rows else _LOOK_S if is_running else _WAIT_S
        for row in rows:
            if row.state == verification.RUNNING:
                self._look(row)
            else:
                others = [other for other in rows if other.state == verification.RUNNING]
                self._start(row, others)

    def _wait_for_stop(self) -> None:
        self._pause_s = _LOOK_S
        self._wake.wait(_WAIT_S)

    def _look(self, row: VerificationRow) -> None:
        """Record the end of a copy; kill it if a task was given one of its slots, or one is out of use."""
        attempt_id = verification.copy_id(row)
        state = self._pool.look(attempt_id)
        if state.state is not State.ENDED:
            with self._queue.view() as queue:
                shares = map(Share.from_dict, row.shares)
                is_wanted = any(
                    queue.cluster.claims(share.node, slot) or not queue.cluster.has(share.node, slot)
                    for share in shares
                    for slot in share.slot_ids
                )
            if is_wanted:
                self._pool.kill(attempt_id, force=False)
            return
        assert state.exit is not None
        result = self._result(attempt_id)
        with self._store.writing() as tx:
            current = tx.get(VerificationRow, row.experiment_id)
            if current is not None:
                self._accounts.end_allocation(tx, attempt_id)
                if result is None and _is_interrupted(state.exit) and current.attempts < _MOST_ATTEMPTS:
                    current.state, current.shares = verification.WAITING, []
                else:
                    verification.settle(tx, current, **_settlement(result, state.exit, current.attempts))
        self._pool.remove(attempt_id)

    def _start(self, row: VerificationRow, others: Sequence[VerificationRow]) -> None:
        """Start a copy if there are slots that nothing waits for; give up if the experiment has ended without them."""
        used = {
            (share.node, slot)
            for other in others
            for share in map(Share.from_dict, other.shares)
            for slot in share.slot_ids
        }
        with self._store.reading() as session:
            experiment = find_experiment(session, row.experiment_id)
            slots = config_of(experiment).resources.slots_per_trial
            has_ended = experiment.end_time is not None
        shares = self._free_shares(slots, used) if self._pool.is_one_machine else None
        if shares is None:
            if has_ended or not self._pool.is_one_machine:
                reason = (
                    "not verified: no free slot"
                    if slots <= 1
                    else f"not verified: it needs {slots} free slots"
                )
                if not self._pool.is_one_machine:
                    reason = "not verified: trials run on other machines than the master"
                with self._store.writing() as tx:
                    if (current := tx.get(VerificationRow, row.experiment_id)) is not None:
                        verification.settle(tx, current, verification.UNVERIFIED, reason=reason)
            return
        self._launch(row.experiment_id, shares)

    def _launch(self, experiment_id: int, shares: tuple[Share, ...]) -> None:
        with self._store.writing() as tx:
            row = tx.get(VerificationRow, experiment_id)
            if row is None:
                return
            row.attempts += 1
            row.state, row.shares = verification.RUNNING, [share.to_dict() for share in shares]
            attempt_id = verification.copy_id(row)
            trial = find_trial(tx, row.trial_id)
            launch = self._launcher.prepare_copy(tx, row, attempt_id, shares, self._folder(attempt_id))
        logger.info("A copy of trial %d verifies that it resumes exactly.", trial.id)
        try:
            self._pool.launch(launch)
        except OSError as error:
            with self._store.writing() as tx:
                if (row := tx.get(VerificationRow, experiment_id)) is not None:
                    reason = f"could not be verified: the copy cannot be started ({error})"
                    verification.settle(tx, row, verification.UNVERIFIED, reason=reason)
            self._pool.remove(attempt_id)

    def _free_shares(self, slots: int, used: set[tuple[str, int]]) -> tuple[Share, ...] | None:
        """Return slots of one machine that no task uses or waits for; None if there are not enough.

        Args:
            slots: their number.
            used: those of other copies.
        """
        if slots == 0:
            return ()
        with self._queue.view() as queue:
            if queue.lacking(1):
                return None
            for node in queue.cluster.nodes:
                free = [slot for slot in queue.cluster.unused(node) if (node, slot) not in used]
                if len(free) >= slots:
                    return (Share(node, tuple(free[:slots]), queue.cluster.address(node)),)
        return None

    def _result(self, attempt_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(
                result_file(self._folder(attempt_id)).read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            return None
        return found

    def _folder(self, attempt_id: str) -> Path:
        return self._home.logs / attempt_id


def _is_interrupted(exit_: Exit) -> bool:
    """Return whether a copy was killed, by this master or from outside."""
    return exit_.ending is Ending.LOST or exit_.code == _KILLED


def _settlement(result: dict[str, Any] | None, exit_: Exit, attempts: int) -> dict[str, Any]:
    """Return the arguments of `settle` for a copy that has ended."""
    if result is not None and "differences" in result:
        differences = list(result["differences"])
        return {
            "state": verification.DIFFERENT if differences else verification.EXACT,
            "differences": differences,
        }
    if result is not None:
        reason = str(result.get("failure"))
    elif _is_interrupted(exit_):
        reason = f"the copy was stopped {attempts} times, mostly because a task needed its slot"
    elif exit_.ending is Ending.NOT_LAUNCHED:
        reason = exit_.detail
    else:
        detail = f": {exit_.detail}" if exit_.detail else ""
        reason = f"the copy ended with exit code {exit_.code} before the second checkpoint{detail}"
    return {"state": verification.UNVERIFIED, "reason": f"could not be verified: {reason}"}
