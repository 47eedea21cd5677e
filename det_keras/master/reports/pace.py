"""How fast running trials are: what their newest sample says, while it is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.models import MetricRow
from det_keras.protocol.metrics import (
    BATCHES_PER_SECOND,
    DATA_WAIT,
    SAMPLES_PER_SECOND,
    SECONDS_LEFT,
    number,
)

# A sample is taken every 10 seconds. An older one is of a process that has ended or hangs, or of a clock that is wrong.
_NEW = timedelta(seconds=45)
# Each machine of a trial has a row, and only that of the chief has the speed.
_MOST_MACHINES = 16
_NAMES = {
    SAMPLES_PER_SECOND: "samplesPerSecond",
    BATCHES_PER_SECOND: "batchesPerSecond",
    SECONDS_LEFT: "secondsLeft",
    DATA_WAIT: "dataWaitPercent",
}


def paces(session: Session, trial_ids: Sequence[int], time: datetime) -> dict[int, dict[str, float]]:
    """Return the speed of trials, the time left and how often no batch was ready; trials without any are omitted.

    Args:
        session: reads the reports.
        trial_ids: numbers of running trials.
        time: now.
    """
    found = {trial_id: _pace(session, trial_id, time) for trial_id in trial_ids}
    return {trial_id: pace for trial_id, pace in found.items() if pace}


def _pace(session: Session, trial_id: int, time: datetime) -> dict[str, float]:
    rows = session.execute(
        select(MetricRow.metrics, MetricRow.end_time)
        .where(
            MetricRow.trial_id == trial_id,
            MetricRow.group == "cpu",
            MetricRow.total_batches.is_(None),
        )
        .order_by(MetricRow.id.desc())
        .limit(_MOST_MACHINES)
    )
    found: dict[str, float] = {}
    seen: set[str] = set()
    for metrics, taken in rows:
        if abs(time - taken) > _NEW or not isinstance(metrics, Mapping):
            continue
        for agent, load in metrics.items():
            # Only the newest sample of each machine.
            if agent not in seen and isinstance(load, Mapping):
                seen.add(agent)
                for name, value in _values(load, (time - taken).total_seconds()).items():
                    found.setdefault(name, value)
    return found


def _values(load: Mapping[str, Any], age_s: float) -> dict[str, float]:
    values = {shown: value for name, shown in _NAMES.items() if (value := number(load.get(name))) is not None}
    left = values.get("secondsLeft")
    if left is not None:
        values["secondsLeft"] = max(left - age_s, 0.0)
    return values
