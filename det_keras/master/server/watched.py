"""What an open page shows, and whether changes concern it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select

from det_keras.master.database.change_feed import EVERYTHING, Subject
from det_keras.master.database.models import TrialRow
from det_keras.master.database.store import Store


class Watched:
    """The subjects of one open page.

    Args:
        names: such as ``experiment:7`` (with its trials), ``experiment-row:7`` (without them), ``trial:12`` or
            ``task:UUID``, or a kind such as ``task`` for all of them. Empty for everything.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        # The trial and experiment of a subject never change, so each is looked up once for each page.
        self._known: dict[Subject, frozenset[str]] = {}

    def includes(self, store: Store, changed: Iterable[Subject]) -> bool:
        """Return whether the page shows something that changed.

        Args:
            store: has the experiments of trials, and the trials of tasks.
            changed: the subjects that changed.
        """
        if not self._names or EVERYTHING in changed:
            return True
        return any(self._names & self._names_of(store, subject) for subject in changed)

    def _names_of(self, store: Store, subject: Subject) -> frozenset[str]:
        """Return all names that mean a subject: a trial belongs to an experiment, and a task may be a trial's."""
        found = self._known.get(subject)
        if found is not None:
            return found
        names = {subject.kind, f"{subject.kind}:{subject.id}"}
        if subject.kind == "experiment":
            names |= {"experiment-row", f"experiment-row:{subject.id}"}
        elif subject.kind in ("trial", "task"):
            column = TrialRow.id if subject.kind == "trial" else TrialRow.task_id
            with store.reading() as session:
                query = select(TrialRow.id, TrialRow.experiment_id, TrialRow.task_id).where(
                    column == subject.id
                )
                for trial, experiment, task in session.execute(query):
                    names |= {"trial", f"trial:{trial}", f"experiment:{experiment}", f"task:{task}"}
        self._known[subject] = frozenset(names)
        return self._known[subject]
