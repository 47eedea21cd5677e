"""The table of trials: filtered, ordered, grouped and in parts. Determined has no such call."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.table.query import Question, Table
from det_keras.master.table.trials import Among, among_of, trial_table

router = APIRouter(prefix="/api/v1/trials")

#: Rows of one answer.
MOST_ROWS = 10_000
#: Columns of a table.
MOST_COLUMNS = 100
#: Characters of a filter, of the names of columns, and of an order.
LONGEST_TEXT = 10_000
#: Characters of a list of numbers of trials or experiments: a whole address has 64 KiB.
LONGEST_NUMBERS = 10_000

_Text = Annotated[str, Query(max_length=LONGEST_TEXT)]
_Numbers = Annotated[str, Query(max_length=LONGEST_NUMBERS)]
OffsetDep = Annotated[int, Query(ge=0)]
LimitDep = Annotated[int, Query(ge=0, le=MOST_ROWS)]


def _question(q: _Text = "", sort: _Text = "", columns: _Text = "", group: _Text = "") -> Question:
    names = tuple(dict.fromkeys(name for name in columns.split(",") if name))
    if len(names) > MOST_COLUMNS:
        raise InvalidArgumentError(f"`columns` may have {MOST_COLUMNS} names, received {len(names)}.")
    return Question(filter=q, sort=sort, columns=names, group=group)


def _experiments(experiments: _Numbers = "") -> frozenset[int] | None:
    return _numbers("experiments", experiments)


def _trials(trials: _Numbers = "") -> frozenset[int] | None:
    return _numbers("trials", trials)


def _numbers(name: str, text: str) -> frozenset[int] | None:
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidArgumentError(
            f"`{name}` must be numbers with commas between them, received `{text[:100]}`."
        ) from None


QuestionDep = Annotated[Question, Depends(_question)]
ExperimentsDep = Annotated[frozenset[int] | None, Depends(_experiments)]


def _among(
    master: MasterDep,
    experiments: ExperimentsDep,
    trials: Annotated[frozenset[int] | None, Depends(_trials)],
) -> Among:
    return among_of(master.store, experiments, trials)


AmongDep = Annotated[Among, Depends(_among)]


@router.get("")
def table(
    master: MasterDep,
    question: QuestionDep,
    among: AmongDep,
    offset: OffsetDep = 0,
    limit: LimitDep = 100,
) -> Response:
    """Return a part of the table of trials.

    ``q`` is a filter such as ``val_accuracy>.9 optimizer=adam state:completed experiment:mnist``; ``sort`` the name of
    a column, with ``-`` in front for the largest first; ``columns`` names with commas between them; ``group`` a column
    by whose values trials are grouped, with mean and standard deviation of each number. ``experiments`` and ``trials``
    are numbers with commas between them: the table then has their trials only, also those of archived experiments.
    """
    found = trial_table(master.trial_rows, replace(question, offset=offset, limit=limit), among)
    return reply({**shape_of(found), "trialIds": found.ids, "bestIds": found.best})


def shape_of(found: Table) -> dict[str, Any]:
    """Return what tables of trials and of experiments have in common, as JSON."""
    return {
        "columns": [asdict(column) for column in found.columns],
        "rows": found.rows,
        "found": found.found,
        "total": found.total,
        "states": found.states,
        "names": [asdict(column) for column in found.names.values()],
    }
