"""The thread that lets waiting trials follow their experiments, a part of them at a time."""

from __future__ import annotations

import logging
import time

from sqlalchemy import and_, or_, select

from det_keras.master import lifecycle
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.notifier import SETTLING, Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.trial_rows import IS_CLOSED_AND_IDLE
from det_keras.master.services.background import Background
from det_keras.protocol import states

logger = logging.getLogger(__name__)

_RETRY_S = 0.5

_IS_UNSETTLED = and_(
    ExperimentRow.is_unmanaged.is_(False),
    or_(
        *(
            (ExperimentRow.state == state) & TrialRow.state.in_(lifecycle.unsettled_states(state))
            for state in states.UNFINISHED
        ),
        ExperimentRow.state.in_(states.GOING_ON) & IS_CLOSED_AND_IDLE,
    ),
)


class Settler(Background):
    """Lets the trials of experiments that were activated, paused or stopped follow them.

    The state of an experiment is what is wanted of its trials. A user's request writes it and moves the first of them;
    the others are moved here, also after a restart of the master. So are those of which the search wants nothing more:
    a search that promotes may end all that wait at once.

    Args:
        store: the database.
        notifier: the source of events.
    """

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store = store
        super().__init__("settler", notifier, SETTLING)

    def step(self) -> bool:
        """Move the next trials of each experiment, each in a transaction; return whether there were any."""
        with self._store.reading() as session:
            query = (
                select(TrialRow.experiment_id)
                .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
                .where(_IS_UNSETTLED)
                .distinct()
            )
            experiment_ids = session.scalars(query).all()
        for experiment_id in experiment_ids:
            with self._store.writing() as tx:
                experiment = tx.get(ExperimentRow, experiment_id)
                if experiment is not None:
                    ExperimentController(tx, experiment).settle()
        return bool(experiment_ids)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._stopping and self.step():
                    pass
            except Exception as error:
                # Nothing is lost: the states say what is still to be done.
                if not isinstance(error, UnavailableError):
                    logger.exception("Trials could not follow their experiment; this will be repeated.")
                time.sleep(_RETRY_S)
                self._wake.set()
