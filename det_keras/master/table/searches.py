"""Searches of runs and experiments as clients of Determined write them: JSON, translated to the terms of `filters`.

A filter is a tree of groups and fields, such as ``{"filterGroup": {"kind": "group", "conjunction": "and", "children":
[{"kind": "field", "columnName": "id", "operator": "=", "value": 7}]}, "showArchived": false}``. An order is
``startTime=desc,id=asc``. Runs are trials.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.table.columns import Names, RowT, Value
from det_keras.master.table.experiments import ExperimentNames, Listed
from det_keras.master.table.filters import Group, Term
from det_keras.master.table.query import in_order
from det_keras.master.table.rows import Row
from det_keras.master.table.trials import TrialNames
from det_keras.master.tasks.scheduling import POOL

_OPERATORS = {
    **{name: name for name in ("=", "!=", "<", "<=", ">", ">=")},
    "contains": ":",
    "notContains": "!:",
    "isEmpty": "?",
    "notEmpty": "!?",
}
_HPARAMS = ("LOCATION_TYPE_HYPERPARAMETERS", "LOCATION_TYPE_RUN_HYPERPARAMETERS")
_METRICS = ("LOCATION_TYPE_VALIDATIONS", "LOCATION_TYPE_TRAINING", "LOCATION_TYPE_CUSTOM_METRIC")
_MOST_LEVELS = 20
_MOST_CONDITIONS = 1000
_NEAREST = 3

# The columns of Determined: the name of the same column of our tables, or the value itself.
_RUN_COLUMNS: Mapping[str, str | Value[Row]] = {
    "id": "id",
    "experimentId": lambda row: row.experiment.id,
    "experimentName": "name",
    "experimentDescription": "description",
    "experimentProgress": "progress",
    "tags": "label",
    "forkedFrom": lambda row: row.experiment.forked_from,
    "startTime": "started",
    "endTime": "ended",
    "duration": "duration",
    # As it is stored: a filter for ACTIVE finds what is queued, too.
    "state": lambda row: row.state.lower(),
    "searcherType": lambda row: row.experiment.searcher,
    "searcherMetric": "metric",
    "searcherMetricsVal": "best",
    "resourcePool": lambda row: POOL,
    "checkpointSize": "checkpoints",
    "user": "owner",
    "projectId": lambda row: row.experiment.project_id,
    "archived": "archived",
    "parentArchived": "archived",
    "isExpMultitrial": lambda row: row.experiment.searcher != "single",
}
_EXPERIMENT_COLUMNS: Mapping[str, str | Value[Listed]] = {
    "id": "id",
    "name": "name",
    "description": "description",
    "tags": "label",
    "forkedFrom": lambda row: row.shape["forkedFrom"],
    "startTime": "started",
    "endTime": "ended",
    "duration": "duration",
    "numTrials": "trials",
    "state": "state",
    "searcherType": "searcher",
    "searcherMetric": "metric",
    "searcherMetricsVal": "best",
    "resourcePool": lambda row: POOL,
    "progress": "progress",
    "checkpointSize": "checkpoints",
    "checkpointCount": lambda row: row.shape["checkpointCount"],
    "user": "owner",
    "projectId": lambda row: row.shape["projectId"],
    "archived": "archived",
}


@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        condition: what rows fulfil; its terms have the names of Determined, with their locations in front.
        shows_archived: whether archived rows are found.
        order: names, and whether each is descending.
    """

    condition: Group
    shows_archived: bool = True
    order: Sequence[tuple[str, bool]] = ()


def parse(filter_text: str, sort: str) -> Search:
    """Return a search.

    Args:
        filter_text: JSON; empty for everything.
        sort: such as ``startTime=desc,id=asc``; empty for the newest first.

    Raises:
        InvalidArgumentError: one of them is malformed.
    """
    condition, shows_archived = Group(), True
    if filter_text:
        try:
            content = json.loads(filter_text)
        except (ValueError, RecursionError):
            raise InvalidArgumentError("`filter` must be JSON with a `filterGroup`.") from None
        if not isinstance(content, dict) or not isinstance(content.get("filterGroup", {}), dict):
            raise InvalidArgumentError("`filter` must be an object with a `filterGroup`.")
        shows_archived = bool(content.get("showArchived", True))
        found = _condition(content.get("filterGroup") or {"kind": "group", "children": []}, _MOST_LEVELS)
        condition = found if isinstance(found, Group) else Group((found,))
        if sum(1 for _ in condition.terms()) > _MOST_CONDITIONS:
            raise InvalidArgumentError(f"`filter` may have {_MOST_CONDITIONS:,} fields.")
    order = []
    for part in filter(None, sort.split(",")):
        name, _, way = part.strip().rpartition("=")
        if way not in ("asc", "desc") or not name:
            raise InvalidArgumentError(
                f"`sort` must be such as `startTime=desc,id=asc`, received {sort[:100]!r}."
            )
        order.append((name, way == "desc"))
    return Search(condition, shows_archived, order)


def _condition(content: Any, levels: int) -> Term | Group:
    if not isinstance(content, dict) or levels == 0:
        raise InvalidArgumentError(
            f"`filter` must have groups and fields, at most {_MOST_LEVELS} in each other."
        )
    if content.get("kind") == "group" or "children" in content:
        conjunction = content.get("conjunction", "and")
        children = content.get("children") or []
        if conjunction not in ("and", "or") or not isinstance(children, list):
            raise InvalidArgumentError(
                "A group of `filter` has a `conjunction`, `and` or `or`, and a list of `children`."
            )
        return Group(tuple(_condition(child, levels - 1) for child in children), conjunction == "or")
    operator, name = content.get("operator"), content.get("columnName")
    if operator not in _OPERATORS or not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"A field of `filter` has a `columnName` and an `operator`: {', '.join(_OPERATORS)}."
        )
    return Term(_located(name, content.get("location")), _OPERATORS[operator], _wanted(content.get("value")))


def _located(name: str, location: object) -> str:
    """Return a name that says where it is, as those of orders do."""
    if location in _HPARAMS and not name.startswith("hp."):
        return f"hp.{name}"
    return name


def _wanted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    text = "" if value is None else str(value)
    return text.removeprefix("STATE_")


class Searched(Generic[RowT]):
    """The columns of a table under the names of Determined.

    Args:
        names: of the table.
        columns: Determined's names of them.
    """

    def __init__(self, names: Names[RowT], columns: Mapping[str, str | Value[RowT]]) -> None:
        self._names = names
        self._columns = columns

    def found(self, rows: Sequence[RowT], search: Search) -> list[RowT]:
        """Return the rows that a search finds, in its order.

        Raises:
            InvalidArgumentError: a name is unknown; the error has the nearest ones.
        """
        if not search.shows_archived:
            rows = [row for row in rows if not self._names.is_archived(row)]
        found = sorted(filter(search.condition.test(lambda term: self._value(term.name)), rows), key=_newest)
        for name, is_descending in reversed(search.order):
            found = in_order(found, self._value(name), is_descending=is_descending)
        return found

    def _value(self, name: str) -> Value[RowT]:
        known = self._columns.get(name)
        if isinstance(known, str):
            return self._names.value_of(known)
        if known is not None:
            return known
        for candidate in _candidates(name):
            if candidate in self._names.all and candidate not in self._columns.values():
                return self._names.value_of(candidate)
        if name.startswith("hp.") or name.count(".") >= 2:
            # Of other runs than these.
            return lambda _: None
        near = difflib.get_close_matches(name, self._columns, _NEAREST, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'`{one}`' for one in near)}?" if near else ""
        raise InvalidArgumentError(f"There is no column `{name}`.{hint}")


def _candidates(name: str) -> list[str]:
    """Return the names that our tables may have for a hyperparameter or a metric, such as ``validation.loss.min``."""
    if name.startswith("hp."):
        return [name.removeprefix("hp.")]
    group, _, rest = name.partition(".")
    metric, _, form = rest.rpartition(".")
    if not metric or form not in ("last", "min", "max"):
        return []
    prefix = "" if form == "last" else f"{form}."
    return [f"{prefix}{group}.{metric}", f"{prefix}{metric}"]


def _newest(row: Any) -> int:
    return -int(row.id)


def searched_runs(names: TrialNames) -> Searched[Row]:
    """Return the columns of trials."""
    return Searched(names, _RUN_COLUMNS)


def searched_experiments(names: ExperimentNames) -> Searched[Listed]:
    """Return the columns of experiments."""
    return Searched(names, _EXPERIMENT_COLUMNS)
