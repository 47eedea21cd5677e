"""What a user changes of a search while it runs: further trials, longer ones, and a narrower space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from det_keras.errors import ConfigError
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.tasks.logs import note
from det_keras.protocol import states

_WITHDRAWN = "the space of its search was narrowed, and its hyperparameters are outside"


class SteeredController(ExperimentController):
    """The controller of an experiment whose search is going on.

    What is asked for is checked before the search gets it as an event: there, an error is one of the search method and
    ends the experiment.
    """

    def add_trial(self, values: Mapping[str, object]) -> TrialRow:
        """Add a trial of the user, and return it.

        Args:
            values: its hyperparameters by dotted name.

        Raises:
            InvalidArgumentError: a value is missing or of the wrong kind, or a name is unknown.
        """
        try:
            hparams = self._config.hyperparameters.completed(values)
        except ConfigError as error:
            raise InvalidArgumentError(str(error)) from None
        self._apply_event("add_trial", hparams)
        trial = self._trials.newest()
        assert trial is not None
        return trial

    def extend(self, trial: TrialRow, length: int) -> None:
        """Let a trial train longer than its search planned, in the unit of the config's ``max_length``.

        Raises:
            FailedPreconditionError: the trial has ended or is stopping.
            InvalidArgumentError: it has a longer length, or its search gives no lengths.
        """
        if trial.state not in states.GOING_ON:
            raise FailedPreconditionError(
                f"Trial {trial.id} has ended. To train it longer, fork its experiment from its checkpoint."
            )
        try:
            self.searcher.check_extension(trial.request_id, length)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
        self._apply_event("extend", trial.request_id, length)

    def narrow(self, wanted: Mapping[str, Sequence[object]]) -> None:
        """Draw further trials from a part of the space, and others in place of those outside that have not begun.

        Raises:
            InvalidArgumentError: a name or a value is unknown, or nothing is left.
        """
        try:
            space = self.searcher.space.narrowed(wanted)
        except ConfigError as error:
            raise InvalidArgumentError(str(error)) from None
        outside = [
            trial
            for trial in self._trials.not_begun()
            if self.searcher.may_withdraw(trial.request_id) and not space.contains(trial.hparams)
        ]
        self._trials.withdraw(outside)
        for trial in outside:
            note(self._tx, trial.task_id, f"Trial {trial.id} was withdrawn before it began: {_WITHDRAWN}.")
        self._apply_event("narrow", wanted, [trial.request_id for trial in outside])


def going_on(tx: Transaction, experiment: ExperimentRow) -> SteeredController:
    """Return the controller of a search that still decides.

    Raises:
        FailedPreconditionError: it has ended, or runs outside of the master.
    """
    if experiment.is_unmanaged:
        raise FailedPreconditionError(
            f"Experiment {experiment.id} runs outside of this master, which cannot change its search."
        )
    if experiment.state not in states.GOING_ON:
        raise FailedPreconditionError(
            f"The search of experiment {experiment.id} has ended. Fork the experiment to search further."
        )
    return SteeredController(tx, experiment)
