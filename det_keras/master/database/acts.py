"""What a changing call does, as the record of changes names it: read from its method and route, never from its body.

A route such as ``/api/v1/experiments/{experiment_id}/links/{link_id}`` names things, each with its number, and ends
with a verb or with none. So a route that is added later is recorded as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from det_keras.master.database.models import (
    AccessTokenRow,
    Base,
    CheckpointRow,
    ExperimentRow,
    ModelRow,
    ProjectRow,
    SavedViewRow,
    SharedLinkRow,
    TaskRow,
    TemplateRow,
    TrialRow,
    UserRow,
    WebhookRow,
    WorkspaceRow,
)

_BELOW = "/api/v1/"
_SEGMENT = re.compile(r"\{(\w+)(?::\w+)?\}", re.ASCII)


@dataclass(frozen=True)
class Noun:
    """A kind of things.

    Attributes:
        kind: its name in the record.
        rows: the tables that have them; none for a thing without rows.
        name: the column by which routes may name one, besides its number; None if only by that.
        is_recorded_once: whether only the call that creates it is recorded: the others bring what it reports.
    """

    kind: str
    rows: tuple[type[Base], ...] = ()
    name: str | None = None
    is_recorded_once: bool = False


# By the word of a route.
_NOUNS = {
    "agents": Noun("agent"),
    "auth": Noun("user"),
    "checkpoints": Noun("checkpoint", (CheckpointRow,)),
    "commands": Noun("job", (TaskRow,)),
    "experiments": Noun("experiment", (ExperimentRow,)),
    "imports": Noun("experiment", (ExperimentRow,), is_recorded_once=True),
    "job-queues": Noun("queue", (ExperimentRow, TaskRow)),
    "links": Noun("link", (SharedLinkRow,)),
    "master": Noun("master"),
    "models": Noun("model", (ModelRow,), name="folded_name"),
    "projects": Noun("project", (ProjectRow,)),
    "runs": Noun("trial", (TrialRow, ExperimentRow)),
    "slots": Noun("slot"),
    "template": Noun("template", (TemplateRow,)),
    "templates": Noun("template", (TemplateRow,)),
    "tensorboards": Noun("tensorboard", (TaskRow,)),
    "tokens": Noun("token", (AccessTokenRow,)),
    "trials": Noun("trial", (TrialRow,)),
    "users": Noun("user", (UserRow,)),
    "views": Noun("view", (SavedViewRow,)),
    "webhooks": Noun("webhook", (WebhookRow,)),
    "workspaces": Noun("workspace", (WorkspaceRow,)),
}
# Words between nouns and verbs that say nothing here.
_FILLING = frozenset({"by-external-id", "searcher"})
# What belongs to a thing and has no row of its own.
_PARTS = frozenset({"labels", "metadata", "notes"})
# What belongs to a thing, and is told with what is done to it.
_MEMBERS = {"aliases": "alias", "versions": "version"}
_VERBS = {"POST": "create", "PUT": "set", "PATCH": "change", "DELETE": "delete"}
# The address of a code logs in as the call does.
_SAME = {"/login": f"{_BELOW}auth/login"}
_OTHER_WORDS = {"orphans": "delete unreported", "retain_logs": "retain logs", "rm": "delete files"}
#: The verbs of calls that say nothing but their method; the record names the columns that they changed.
PLAIN_VERBS = frozenset(_VERBS.values())

#: The routes by which trainings report, whoever has the token: they are no user's changes, and must cost nothing.
REPORTS = frozenset(
    f"{_BELOW}{path}"
    for path in (
        "checkpoints",
        "runs/start",
        "runs/{run_id}/metadata",
        "task/logs",
        "trial-source-info",
        "trials/{trial_id}",
        "trials/{trial_id}/early_exit",
        "trials/{trial_id}/media",
        "trials/{trial_id}/metrics",
        "trials/{trial_id}/metrics/together",
        "trials/{trial_id}/progress",
        "trials/{trial_id}/provenance",
        "trials/{trial_id}/runner/metadata",
        "trials/{trial_id}/searcher/completed_operation",
        "trials/{trial_id}/training_metrics",
        "trials/{trial_id}/validation_metrics",
        "webhooks/custom",
    )
) | {"/task-logs"}
_OF_ALLOCATIONS = f"{_BELOW}allocations/"
# A report of checkpoints, and changes of those that exist, have the same route.
_REPORTING_METHODS = {f"{_BELOW}checkpoints": frozenset({"POST"})}


@dataclass(frozen=True)
class Act:
    """What a call does.

    Attributes:
        verb: such as ``kill`` or ``create``.
        noun: what it is done to.
        id: its number or name; None if the route does not name it, such as for what is created.
        parent: the thing to which it belongs by the route, and its id; None for none.
        detail: what else the route says, such as a label.
    """

    verb: str
    noun: Noun
    id: str | None
    parent: tuple[Noun, str] | None
    detail: str = ""


def is_report(method: str, route: str) -> bool:
    """Return whether a route is one by which trainings report."""
    if route.startswith(_OF_ALLOCATIONS):
        return True
    return route in REPORTS and method in _REPORTING_METHODS.get(route, {method})


def act_of(method: str, route: str, parameters: Mapping[str, object]) -> Act:
    """Return what a call does.

    Args:
        method: of HTTP.
        route: the pattern of its path, such as ``/api/v1/experiments/{experiment_id}/kill``.
        parameters: the values in the path.
    """
    verb, detail = _VERBS.get(method, method.lower()), ""
    named: list[tuple[Noun, str | None]] = []
    for word, value in _steps(_SAME.get(route, route), parameters):
        noun = _NOUNS.get(word)
        if noun is not None:
            named.append((noun, value))
        elif word in _PARTS:
            verb, detail = f"change {word}", value or ""
        elif word in _MEMBERS:
            verb, detail = f"{verb} {_MEMBERS[word]}", value or ""
        elif word not in _FILLING:
            verb = _OTHER_WORDS.get(word, word)
    if not named:
        named.append((Noun("master"), None))
    noun, identity = named[-1]
    first, first_id = named[0]
    parent = (first, first_id) if len(named) > 1 and first_id is not None else None
    if noun.kind == "queue":
        verb = "change queue"
    return Act(verb, noun, identity, parent, detail)


def _steps(route: str, parameters: Mapping[str, object]) -> Iterator[tuple[str, str | None]]:
    """Yield the words of a route, each with the value that follows it."""
    word: str | None = None
    for segment in route.removeprefix(_BELOW).strip("/").split("/"):
        found = _SEGMENT.fullmatch(segment)
        if found is not None and found[1] != "verb":
            value = str(parameters.get(found[1], ""))
            if word is not None:
                yield word, value
            word = None
            continue
        if word is not None:
            yield word, None
        word = segment if found is None else str(parameters.get("verb", ""))
    if word is not None:
        yield word, None
