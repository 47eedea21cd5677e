"""What webhooks receive: the bodies that Determined 0.38.1 sends, and its messages in Slack's form."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, ProjectRow, SettingRow, WorkspaceRow
from det_keras.master.database.store import Transaction
from det_keras.master.wire import encode_json
from det_keras.protocol.states import COMPLETED, ERROR
from det_keras.protocol.values import now

#: Kinds of events, as triggers name them.
STATE_CHANGE, TASK_LOG, CUSTOM = "EXPERIMENT_STATE_CHANGE", "TASK_LOG", "CUSTOM"
#: The form of messages of Slack.
SLACK = "SLACK"

_BASE = "base_url"
_GREEN, _RED = "#13B670", "#DD5040"
# Characters of a line in a message.
_LONGEST_LINE = 2_000
_LONGEST_SLACK = 3_000


@dataclass(frozen=True)
class Alert:
    """A message of a script.

    Attributes:
        title: its subject.
        description: its text.
        level: such as ``LOG_LEVEL_INFO``.
    """

    title: str
    description: str
    level: str


def set_base(tx: Transaction, url: str) -> None:
    """Set the address of the pages, to which messages link; empty for none."""
    row = tx.get(SettingRow, _BASE)
    if row is None:
        tx.add(SettingRow(name=_BASE, value=url))
    elif row.value != url:
        row.value = url


def of_experiment(
    session: Session,
    form: str,
    event_id: str,
    experiment: ExperimentRow,
    alert: Alert | None = None,
    trial_id: int | None = None,
) -> str:
    """Return the body about a change of state, or about an alert.

    Args:
        session: to read with.
        form: of the webhook.
        event_id: of the event.
        experiment: in its new state.
        alert: the alert; None for a change of state.
        trial_id: number of the trial that alerts; None for none.
    """
    facts = _facts(session, experiment)
    if form == SLACK:
        return _text(_slack(session, experiment, facts, alert, trial_id))
    shown = {**facts, **({} if trial_id is None else {"trial_id": trial_id})}
    data: dict[str, Any] = {"experiment": shown}
    if alert is not None:
        data["custom_data"] = {
            "title": alert.title,
            "description": alert.description,
            "level": alert.level,
        }
    kind = STATE_CHANGE if alert is None else CUSTOM
    return _text(_event(event_id, kind, {"state": experiment.state}, data))


def of_line(
    session: Session, form: str, event_id: str, line: str, pattern: str, task: Mapping[str, Any]
) -> str:
    """Return the body about a line of a log.

    Args:
        session: to read with.
        form: of the webhook.
        event_id: of the event.
        line: the line.
        pattern: which it matches.
        task: `task_id`, `node_name`, and `kind`, `experiment_id` and `trial_id` of the task.
    """
    line = line.rstrip("\n")[:_LONGEST_LINE]
    if form != SLACK:
        data = {"task_id": task["task_id"], "node_name": task["node_name"], "triggering_log": line}
        return _text(_event(event_id, TASK_LOG, {"regex": pattern}, {"task_log": data}))
    if task["trial_id"] is None:
        where, link = f"Task ID `{task['task_id']}`, task type `{task['kind']}`", ""
    else:
        where = f"Experiment ID `{task['experiment_id']}`, Trial ID `{task['trial_id']}`"
        path = f"/det/experiments/{task['experiment_id']}/trials/{task['trial_id']}/logs"
        base = _base(session)
        link = f"<{base}{path} | View full logs here>" if base else f"View full logs at {path}"
    text = (
        f"{where}, running on node `{task['node_name']}`, reported a log\n```{_plain(line)}```\n"
        f"This log matched the regex\n```{_plain(pattern)}```\n{link}"
    )
    return _text({"blocks": [{"type": "section", "text": _field(text)}]})


def of_test(form: str, event_id: str) -> str:
    """Return the body of a test."""
    if form == SLACK:
        return _text({"blocks": [{"type": "section", "text": {"type": "plain_text", "text": "test"}}]})
    return _text(_event(event_id, STATE_CHANGE, {"state": COMPLETED}, {"data": "test"}))


def _event(event_id: str, kind: str, condition: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "event_type": kind,
        "timestamp": int(time.time()),
        "condition": condition,
        "event_data": data,
    }


def _facts(session: Session, experiment: ExperimentRow) -> dict[str, Any]:
    config = config_of(experiment)
    project = session.get(ProjectRow, experiment.project_id)
    workspace = None if project is None else session.get(WorkspaceRow, project.workspace_id)
    duration = (
        0 if experiment.end_time is None else (experiment.end_time - experiment.start_time).total_seconds()
    )
    return {
        "id": experiment.id,
        "state": experiment.state,
        "name": config.name,
        "duration": int(duration),
        "resource_pool": config.resources.resource_pool or "",
        "slots_per_trial": config.resources.slots_per_trial,
        "workspace": "" if workspace is None else workspace.name,
        "project": "" if project is None else project.name,
    }


def _slack(
    session: Session,
    experiment: ExperimentRow,
    facts: Mapping[str, Any],
    alert: Alert | None,
    trial_id: int | None,
) -> dict[str, Any]:
    head, sign, color, status = {
        COMPLETED: ("Your experiment completed successfully 🎉", "✅ ", _GREEN, "Completed"),
        ERROR: ("Your experiment has stopped with errors", "❌ ", _RED, "Errored"),
    }.get(
        experiment.state,
        (f"The status of your experiment is {experiment.state}", "", _GREEN, experiment.state),
    )
    base, name = _base(session), f"{_plain(facts['name'])} (#{experiment.id})"
    title = f"{sign}<{base}/det/experiments/{experiment.id}/overview | {name}>" if base else f"{sign}{name}"
    minutes = int(((experiment.end_time or now()) - experiment.start_time).total_seconds() // 60)
    fields = [f"*Status*: {status}", f"*Duration*: {minutes // 60}h {minutes % 60}min"]
    fields += [
        f"*{word}*: {_plain(facts[key])}"
        for word, key in (("Workspace", "workspace"), ("Project", "project"))
    ]
    if trial_id is not None:
        fields.append(f"*Trial ID*: {trial_id}")
    about = _section(title, fields, "mrkdwn")
    first: dict[str, Any] = _section(head, [], "plain_text")
    if alert is not None:
        told = (("Level", alert.level), ("Title", alert.title), ("Description", alert.description))
        first = _section("Event Data", [f"*{word}*: {_plain(text)}" for word, text in told], "plain_text")
    return {"blocks": [first], "attachments": [{"color": color, "blocks": [about]}]}


def _section(text: str, fields: Sequence[str], kind: str) -> dict[str, Any]:
    section = {"type": "section", "text": {"type": kind, "text": text[:_LONGEST_SLACK]}}
    return {**section, "fields": [_field(each) for each in fields]} if fields else section


def _field(text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text[:_LONGEST_SLACK]}


def _plain(text: str) -> str:
    """Return a text that is no markup of Slack: a name must not become a link, or call everybody in a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _base(session: Session) -> str:
    row = session.get(SettingRow, _BASE)
    return "" if row is None else row.value


def _text(body: Mapping[str, Any]) -> str:
    return encode_json(body).decode()
