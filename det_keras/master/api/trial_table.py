"""The table of all trials: filtered, ordered, grouped and in parts. Determined has no such call."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server.calls import MasterDep
from det_keras.master.server.responses import reply
from det_keras.master.table.query import Question, answer

router = APIRouter(prefix="/api/v1/trials")

#: Rows of one answer.
MOST_ROWS = 10_000
#: Columns of a table.
MOST_COLUMNS = 100
#: Characters of a filter, of the names of columns, and of an order.
LONGEST_TEXT = 10_000

_Text = Annotated[str, Query(max_length=LONGEST_TEXT)]


def _question(q: _Text = "", sort: _Text = "", columns: _Text = "", group: _Text = "") -> Question:
    names = tuple(dict.fromkeys(name for name in columns.split(",") if name))
    if len(names) > MOST_COLUMNS:
        raise InvalidArgumentError(f"`columns` may have {MOST_COLUMNS} names, received {len(names)}.")
    return Question(filter=q, sort=sort, columns=names, group=group)


QuestionDep = Annotated[Question, Depends(_question)]


@router.get("")
def table(
    master: MasterDep,
    question: QuestionDep,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 100,
) -> Response:
    """Return a part of the table of all trials.

    ``q`` is a filter such as ``val_accuracy>.9 optimizer=adam state:completed experiment:mnist``; ``sort`` the name of
    a column, with ``-`` in front for the largest first; ``columns`` names with commas between them; ``group`` a column
    by whose values trials are grouped, with mean and standard deviation of each number.
    """
    found = answer(master.trial_rows, replace(question, offset=offset, limit=limit))
    return reply(
        {
            "columns": [asdict(column) for column in found.columns],
            "rows": found.rows,
            "trialIds": found.ids,
            "found": found.found,
            "total": found.total,
            "names": [asdict(column) for column in found.names.values()],
        }
    )
