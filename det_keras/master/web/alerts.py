"""What a page says when something is wrong: a failed run, a metric that is NaN, a silent trial, a wait for data."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread

from det_keras.display import parse_time
from det_keras.master.checkpoints.verification import DIFFERENT
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.reports.points import EVERY_POINT
from det_keras.master.web.metric_choice import Metric, metrics_of
from det_keras.master.web.rest import Rest
from det_keras.protocol.metrics import DATA_WAIT
from det_keras.protocol.states import COMPLETED, ERROR, RUNNING, bare, named
from det_keras.protocol.values import now

_MOST_LINES = 12
_SILENT_S = 300
# Training waited for its data this often, in at least so many samples.
_MUCH_PERCENT = 50.0
_FEWEST_SAMPLES = 3
# A page names the first of many trials with NaN, and counts the others.
_MOST_CHECKED = 20


@dataclass(frozen=True)
class Alert:
    """A box on top of a page.

    Attributes:
        kind: ``error`` or ``warning``.
        title: what happened, on one line.
        lines: the last lines of the traceback or of stderr.
        time: ISO 8601; when it happened.
        about: which run, and what else failed.
        log: address of the log at the error.
        restart: body of the call that continues the experiment.
        restart_word: text of its button.
    """

    kind: str
    title: str
    lines: Sequence[str] = ()
    time: str | None = None
    about: str = ""
    log: str = ""
    restart: Mapping[str, Any] = field(default_factory=dict)
    restart_word: str = ""


def verification_alerts(verification: Mapping[str, Any] | None) -> list[Alert]:
    """Return the alert of an experiment whose copy did not resume exactly; none otherwise.

    Args:
        verification: of the experiment, in the form of the REST API.
    """
    if verification is None or verification["state"] != DIFFERENT:
        return []
    first, second = verification["firstBatch"], verification["secondBatch"]
    named = verification["differences"]
    more = [f"and {len(named) - _MOST_LINES} more"] if len(named) > _MOST_LINES else []
    return [
        Alert(
            "warning",
            f"Trial {verification['trialId']} does not resume exactly: a copy that resumed from batch {first} "
            f"differs at batch {second}",
            lines=[*named[:_MOST_LINES], *more],
            about="docs/exact-resume.md says what a script may not do.",
        )
    ]


async def trial_alerts(
    master: EmbeddedMaster,
    trial: Mapping[str, Any],
    experiment: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[Mapping[str, Any]],
) -> list[Alert]:
    """Return the alerts of a trial.

    Args:
        master: has the curves.
        trial: the `Trial` of the REST API.
        experiment: its `Experiment`.
        runs: its allocations, latest first.
        checkpoints: its checkpoints.
    """
    found = []
    failed = next((run for run in runs if is_failed(run)), None)
    if failed is not None and trial["state"] == named(ERROR):
        found.append(_failure(trial, experiment, runs, failed, checkpoints))
    elif failed is not None and not trial["endTime"]:
        number = _number(failed)
        title = f"Run {number} failed and the trial was started again: {_headline(failed)}"
        log = f"/trials/{trial['id']}/logs?error={failed['allocationId']}"
        found.append(Alert("warning", title, time=failed["endTime"], log=log))
    if trial["logPolicyMatched"]:
        # The log itself says what the policy leads to.
        title = f"Lines of the log match the log policy {trial['logPolicyMatched']!r}"
        found.append(Alert("warning", title, log=f"/trials/{trial['id']}/logs"))
    started = {trial["id"]: runs[0]["startTime"]} if runs else {}
    return [*found, *await anyio.to_thread.run_sync(_warnings, master, [trial], started)]


async def search_alerts(
    master: EmbeddedMaster, rest: Rest, experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]
) -> list[Alert]:
    """Return the alerts of an experiment: the trial that failed last, and warnings about all trials.

    Args:
        master: has the curves.
        rest: for the runs of the failed trial, and of silent ones.
        experiment: the `Experiment` of the REST API.
        trials: its trials.
    """
    found = []
    failed = [trial for trial in trials if trial["state"] == named(ERROR)]
    if failed:
        trial = max(failed, key=lambda one: one["endTime"] or "")
        runs, stored = await asyncio.gather(
            runs_of(rest, trial), rest.get(f"/trials/{trial['id']}/checkpoints")
        )
        last = next((run for run in runs if is_failed(run)), None)
        others = "" if len(trials) == 1 else f"{len(failed)} of {len(trials)} trials failed."
        found.append(_failure(trial, experiment, runs, last, stored["checkpoints"], others))
    # A trial that was queued or paused could not report: for those that seem silent, ask when they started.
    silent = await anyio.to_thread.run_sync(_silent_trials, master, trials, {})
    runs_of_silent = await asyncio.gather(*(runs_of(rest, trial) for trial, _ in silent))
    started = {
        trial["id"]: runs[0]["startTime"]
        for (trial, _), runs in zip(silent, runs_of_silent, strict=True)
        if runs
    }
    return [*found, *await anyio.to_thread.run_sync(_warnings, master, trials, started)]


async def job_alerts(rest: Rest, job_id: str, status: str) -> list[Alert]:
    """Return the alerts of a job that has failed.

    Args:
        rest: for its allocations.
        job_id: id of its task.
        status: how it ended.
    """
    runs = (await rest.get(f"/tasks/{job_id}"))["task"]["allocations"]
    failed = next((run for run in reversed(runs) if is_failed(run)), None)
    if failed is None or status == "killed":
        return []
    log = f"?error={failed['allocationId']}#log"
    # A task whose machine was lost, or that could not be started, has no exit code.
    code = failed["statusCode"]
    about = "" if code is None else f"Exit code {code}."
    return [Alert("error", _headline(failed), _lines(failed), failed["endTime"], about, log)]


def _failure(
    trial: Mapping[str, Any],
    experiment: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    failed: Mapping[str, Any] | None,
    checkpoints: Sequence[Mapping[str, Any]],
    others: str = "",
) -> Alert:
    if failed is None:
        return Alert("error", f"Trial {trial['id']} failed.", time=trial["endTime"], about=others)
    count = f"run {_number(failed)} of {len(runs)}" if len(runs) > 1 else "its only run"
    code = "" if failed["statusCode"] is None else f" with exit code {failed['statusCode']}"
    about = (
        f"Trial {trial['id']} ended in {count}{code}, at batch {trial['totalBatchesProcessed']:,}. {others}"
    )
    saved = max((_batches(one) for one in checkpoints if one["state"] == named(COMPLETED)), default=0)
    can_continue = (
        experiment["endTime"] is not None and not experiment["unmanaged"] and not experiment["archived"]
    )
    return Alert(
        "error",
        _headline(failed),
        _lines(failed),
        failed["endTime"],
        about.strip(),
        f"/trials/{trial['id']}/logs?error={failed['allocationId']}",
        {"id": experiment["id"]} if can_continue else {},
        f"Continue from batch {saved:,}" if saved else "Run again",
    )


def _batches(checkpoint: Mapping[str, Any]) -> int:
    return int(checkpoint["metadata"].get("steps_completed") or 0)


def _headline(run: Mapping[str, Any]) -> str:
    lines = _lines(run)
    if lines:
        return lines[-1]
    return "ended without an exit code" if run["statusCode"] is None else f"exit code {run['statusCode']}"


def _lines(run: Mapping[str, Any]) -> list[str]:
    return [line for line in run["exitReason"].splitlines() if line.strip()][-_MOST_LINES:]


def _number(run: Mapping[str, Any]) -> str:
    return str(run["allocationId"]).rsplit(".", 1)[-1]


def _warnings(
    master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]], started: Mapping[int, str]
) -> list[Alert]:
    return [
        *_nan_warnings(master, trials),
        *_silence_warnings(master, trials, started),
        *_wait_warnings(master, trials),
    ]


def _nan_warnings(master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]]) -> list[Alert]:
    broken = [(trial, metric) for trial in trials if (metric := _nan_metric(trial)) is not None]
    if not broken:
        return []
    trial, metric = broken[0]
    since = master.curves.not_finite_since(trial["id"], group=metric.group, metric=metric.name)
    where = "" if since is None else f" since batch {since:,}"
    whose = f"Trial {trial['id']}: " if len(trials) > 1 else ""
    more = f", and of {len(broken) - 1} more trials" if len(broken) > 1 else ""
    title = f"{whose}{metric.name} ({metric.group}) is {_last(trial, metric)}{where}{more}."
    return [
        Alert("warning", title, about="A smaller learning rate, or gradient clipping, often prevents it.")
    ]


def _nan_metric(trial: Mapping[str, Any]) -> Metric | None:
    """Return a metric of a trial whose last value is not finite; a loss if there is one."""
    broken = [metric for metric in metrics_of([trial]) if not math.isfinite(float(_last(trial, metric)))]
    return min(broken, key=lambda metric: ("loss" not in metric.name, metric), default=None)


def _last(trial: Mapping[str, Any], metric: Metric) -> Any:
    return trial["summaryMetrics"][metric.summary_group][metric.name]["last"]


def _silence_warnings(
    master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]], started: Mapping[int, str]
) -> list[Alert]:
    found = []
    for trial, silent_s in _silent_trials(master, trials, started):
        whose = f"Trial {trial['id']}" if len(trials) > 1 else "This trial"
        title = f"{whose} has not reported for {int(silent_s // 60)} minutes."
        found.append(Alert("warning", title, log=f"/trials/{trial['id']}/logs"))
    return found[:3]


def _silent_trials(
    master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]], started: Mapping[int, str]
) -> list[tuple[Mapping[str, Any], float]]:
    """Return the running trials that have not reported for too long, each with the time in seconds.

    Args:
        master: has the times of reports.
        trials: of which the first ones that run are checked.
        started: when the latest run of a trial began, as ISO 8601; without it its creation counts.
    """
    time = now()
    running = [trial for trial in trials if trial["state"] == named(RUNNING)][:_MOST_CHECKED]
    reported = master.curves.last_reports([trial["id"] for trial in running])
    found = []
    for trial in running:
        times = [
            reported.get(trial["id"]),
            parse_time(started.get(trial["id"])),
            parse_time(trial["startTime"]),
        ]
        silent_s = (time - max(one for one in times if one is not None)).total_seconds()
        if silent_s >= _SILENT_S:
            found.append((trial, silent_s))
    return found


def _wait_warnings(master: EmbeddedMaster, trials: Sequence[Mapping[str, Any]]) -> list[Alert]:
    newest = sorted(trials, key=lambda trial: trial["id"])[-_MOST_CHECKED:]
    waiting = [(percent, trial) for trial in newest if (percent := _wait_percent(master, trial)) is not None]
    if not waiting:
        return []
    percent, trial = max(waiting, key=lambda one: one[0])
    whose = f"Trial {trial['id']}" if len(trials) > 1 else "Training"
    more = f", and {len(waiting) - 1} more trials as well" if len(waiting) > 1 else ""
    title = f"{whose} found no batch ready in {percent:.0f} % of the time: it waits for its data{more}."
    about = "Load in parallel and ahead: num_parallel_calls and prefetch in tf.data, workers in a PyDataset; or cache."
    return [Alert("warning", title, about=about)]


def _wait_percent(master: EmbeddedMaster, trial: Mapping[str, Any]) -> float | None:
    """Return how often a trial had no batch ready, in percent; None if that was seldom, or is not known.

    Of several machines, the one that waits most counts.
    """
    # All points: thinning prefers extremes, and the mean is not theirs.
    percents = [
        float(series.values.mean())
        for series in master.system_metrics.read(trial["id"], most_points=EVERY_POINT)
        if series.metric.name == DATA_WAIT and series.total >= _FEWEST_SAMPLES
    ]
    return max((percent for percent in percents if percent >= _MUCH_PERCENT), default=None)


async def runs_of(rest: Rest, trial: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the allocations of a trial, latest first; a continued trial has several tasks."""
    tasks = await asyncio.gather(*(rest.get(f"/tasks/{task_id}") for task_id in trial["taskIds"]))
    found: list[dict[str, Any]] = [
        allocation for answer in tasks for allocation in answer["task"]["allocations"]
    ]
    return sorted(found, key=lambda allocation: allocation["startTime"] or "", reverse=True)


def is_failed(run: Mapping[str, Any]) -> bool:
    """Return whether an allocation ended with a failure; one that was asked to stop did not fail."""
    return run["endTime"] is not None and bool(
        run["exitReason"] or run["statusCode"] not in (0, None, 137, 143)
    )


def outcome(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of state (see `rendering.state_kind`) and the text of how an allocation ended."""
    if run["endTime"] is None:
        return "running", bare(run["state"]).lower()
    if is_failed(run):
        code = run["statusCode"]
        return "error", "failed" if code is None else f"failed, exit code {code}"
    return ("completed", "ended") if run["statusCode"] == 0 else ("canceled", "stopped")
