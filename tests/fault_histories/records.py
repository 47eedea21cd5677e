"""The rows of a finished history's database, as the oracle reads them."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Records"]

Row = Mapping[str, Any]

_JSON = {"config", "hparams", "metrics", "labels", "meta", "resources", "earlier_task_ids", "event"}


class Records:
    """All rows, read at once.

    Args:
        database: the file.

    Attributes:
        experiments: by number.
        trials: by number.
        tasks: by id.
        allocations: in the order of their start.
        metrics: in the order of their numbers.
        checkpoints: of all trials.
        logs: in the order of their numbers.
        events: of searches, as the recorder of `world` kept them, in their order.
        tokens: the hashes of the tokens that are valid.
        states: changes of states, in their order.
        integrity: what SQLite says of the file; ``ok`` if all is well.
    """

    def __init__(self, database: Path) -> None:
        connection = sqlite3.connect(database)
        connection.row_factory = sqlite3.Row
        try:
            self.integrity = ", ".join(row[0] for row in connection.execute("PRAGMA integrity_check"))
            self.experiments = {row["id"]: row for row in _read(connection, "experiments")}
            self.trials = {row["id"]: row for row in _read(connection, "trials")}
            self.tasks = {row["id"]: row for row in _read(connection, "tasks")}
            self.allocations = _read(connection, "allocations")
            self.metrics = _read(connection, "metrics", "id")
            self.checkpoints = _read(connection, "checkpoints")
            self.logs = _read(connection, "task_logs", "id")
            self.events = _read(connection, "history_events", "number")
            self.tokens = frozenset(row["hash"] for row in _read(connection, "tokens"))
            self.states = _read(connection, "history_states", "number")
        finally:
            connection.close()

    def named(self, name: str) -> list[Row]:
        """Return the experiments with a description."""
        return [row for row in self.experiments.values() if row["description"] == name]

    def trials_of(self, experiment: Row) -> list[Row]:
        """Return the trials of an experiment, oldest first."""
        found = [row for row in self.trials.values() if row["experiment_id"] == experiment["id"]]
        return sorted(found, key=lambda row: row["id"])

    def allocations_of(self, trial: Row) -> list[Row]:
        """Return the attempts of a trial."""
        return [row for row in self.allocations if row["task_id"] == trial["task_id"]]

    def lines_by_allocation(self) -> Mapping[str, list[str]]:
        """Return what tasks printed, by attempt."""
        found: dict[str, list[str]] = defaultdict(list)
        for row in self.logs:
            if row["source"] == "task" and row["allocation_id"] is not None:
                found[row["allocation_id"]].append(row["text"].rstrip("\n"))
        return found

    def lines_of_task(self, task_id: str) -> list[str]:
        """Return what clients sent to the log of a task."""
        rows: Iterable[Row] = (row for row in self.logs if row["task_id"] == task_id)
        return [
            row["text"].rstrip("\n")
            for row in rows
            if row["allocation_id"] is None and row["source"] == "task"
        ]


def _read(connection: sqlite3.Connection, table: str, order: str = "rowid") -> list[Row]:
    return [_plain(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}")]


def _plain(row: sqlite3.Row) -> Row:
    found = {name: row[name] for name in row.keys()}  # noqa: SIM118 - rows are no mappings
    for name in _JSON & found.keys():
        if isinstance(found[name], str):
            found[name] = json.loads(found[name])
    return found
