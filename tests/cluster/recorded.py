"""Calls that were recorded from a running Determined 0.38.1 cluster, which are no part of this project.

They are looked for beside the repository, or where DET_KERAS_TEST_ORACLE names a directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[3] / "shared" / "oracle"
# Parts of paths that name one thing of its kind.
_NAMES = re.compile(
    r"(?<=/)(?:[0-9]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+\.[^/]+|[0-9a-f-]{36}\.[0-9]+|(?<=by-external-id/)[^/]+)(?=/|$)"
)
# Fields whose content belongs to the user, or is keyed by names.
_FREE = frozenset(
    {
        "allocationIdToSummary", "avgMetrics", "batchMetrics", "config", "containers", "experimentConfig", "hparams",
        "hyperparameters", "metadata", "resources", "slots", "summaryMetrics", "typeStats", "brandStats", "states",
    }
)  # fmt: skip
# What a field has that was empty or absent in the recorded state of its object.
_LATER = frozenset({"endTime", "exitReason", "isReady"})


@dataclass(frozen=True)
class Call:
    """A recorded call.

    Attributes:
        method: the HTTP verb.
        path: with the query.
        status: of the answer.
        auth: kind of the credentials: `bearer` of a user, `alloc` of a task.
        request: the body.
        answer: the body.
    """

    method: str
    path: str
    status: int
    auth: str
    request: str
    answer: str

    @property
    def place(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]

    @property
    def content(self) -> Any:
        """The answer as JSON; None if it is none, or was cut."""
        try:
            return json.loads(self.answer)
        except ValueError:
            return None


def file() -> Path | None:
    """Return the file of the calls; None if it is not on this machine."""
    path = Path(os.environ.get("DET_KERAS_TEST_ORACLE", _BESIDE)) / "determined-0.38.1" / "requests.jsonl"
    return path if path.is_file() else None


needs_calls = pytest.mark.skipif(
    file() is None,
    reason="the recorded calls of Determined 0.38.1 are not here; name their directory in DET_KERAS_TEST_ORACLE",
)


@cache
def calls() -> tuple[Call, ...]:
    """Return all recorded calls; none where they are not."""
    path = file()
    if path is None:
        return ()
    names = Call.__dataclass_fields__
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return tuple(Call(**{name: row[name] for name in names}) for row in rows)


def kind(method: str, place: str) -> str:
    """Return what calls of the same kind have in common: `GET /api/v1/trials/*`."""
    return f"{method} {_NAMES.sub('*', place)}"


@cache
def forms() -> Mapping[str, Any]:
    """Return the form of the answers of each kind of call: a mapping of the known fields, by field."""
    found: dict[str, Any] = {}
    for call in calls():
        if call.status == 200 and call.content is not None:
            name = kind(call.method, call.place)
            found[name] = _merged(found.get(name), call.content)
    return found


def fitted(method: str, place: str, content: Any) -> Any:
    """Return an answer without the fields that the real master does not have there; unchanged if none was recorded."""
    form = forms().get(kind(method, place))
    return content if form is None else _fitted(content, form)


def unknown_fields(method: str, place: str, content: Any) -> list[str]:
    """Return the paths of fields that no recorded answer of this kind has."""
    form = forms().get(kind(method, place))
    return [] if form is None else list(_unknown(content, form, ""))


def _merged(form: Any, content: Any) -> Any:
    if isinstance(content, list):
        for item in content:
            form = _merged(form, item)
        return form
    if not isinstance(content, dict):
        return form
    known = dict(form or {})
    for name, value in content.items():
        known[name] = None if name in _FREE else _merged(known.get(name), value)
    return known


def _fitted(content: Any, form: Any) -> Any:
    if isinstance(content, list):
        return [_fitted(item, form) for item in content]
    if not isinstance(content, dict) or not form:
        return content
    return {
        name: value if name in _LATER else _fitted(value, form[name])
        for name, value in content.items()
        if name in form or name in _LATER
    }


def _unknown(content: Any, form: Any, path: str) -> Any:
    if isinstance(content, list):
        for item in content:
            yield from _unknown(item, form, path)
    elif isinstance(content, dict) and form:
        for name, value in content.items():
            if name in form:
                yield from _unknown(value, form[name], f"{path}.{name}")
            elif name not in _LATER:
                yield f"{path}.{name}"
