"""The state and progress of a running experiment, from the responses of the master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.display import metric_text, number_text, pace_texts
from det_keras.protocol.metrics import rank
from det_keras.protocol.states import COMPLETED, ERROR, is_over, named

#: Reported together with the metrics: how much was trained.
COUNTERS = ("batches", "epochs", "records")

_SHOWN_METRICS = 8


@dataclass(frozen=True)
class Best:
    """The best validation of an experiment.

    Attributes:
        metric: the searcher's metric.
        value: its value.
        trial_id: the trial that reported it.
        batches: batches trained at that validation.
    """

    metric: str
    value: float
    trial_id: int
    batches: int


@dataclass(frozen=True)
class Snapshot:
    """An experiment at one instant.

    Attributes:
        state: the experiment's state, as in the REST API.
        fraction: its progress, 0 to 1.
        text: one line of text.
        seconds_left: time until the end of its only trial; None if unknown.
        estimates: whether the time left may be estimated from `fraction`: the master tells no time left.
    """

    state: str
    fraction: float
    text: str
    seconds_left: float | None = None
    estimates: bool = True

    @classmethod
    def take(cls, experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Snapshot:
        """Return the snapshot for an experiment and its trials, as in the REST API."""
        state = str(experiment["state"])
        done = state == named(COMPLETED)
        fraction = 1.0 if done else min(1.0, max(0.0, float(experiment.get("progress") or 0.0)))
        parts = [_trial_text(trials[0], experiment)] if len(trials) == 1 else [_trials_text(trials)]
        best = best_validation(experiment, trials)
        if best is not None:
            parts.append(
                f"best {best.metric} {metric_text(best.value)}" if len(trials) > 1 else _latest(trials, best)
            )
        only = trials[0] if len(trials) == 1 else {}
        pace = only.get("pace") or {}
        parts += pace_texts({**pace, "secondsLeft": None})
        text = "  ".join(part for part in parts if part)
        return cls(state, fraction, text, pace.get("secondsLeft"), estimates="pace" not in only)


def best_validation(experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Best | None:
    """Return the best validation of all trials by the searcher's metric; None if there is none."""
    searcher = experiment["config"].get("searcher") or {}
    metric = str(searcher.get("metric"))
    smaller = bool(searcher.get("smaller_is_better", True))
    found = []
    for trial in trials:
        validation = trial.get("bestValidation") or {}
        value = _metrics(validation).get(metric)
        # NaN is text in JSON.
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(Best(metric, float(value), int(trial["id"]), int(validation["totalBatches"])))
    return min(found, key=lambda best: rank(best.value, smaller_is_better=smaller), default=None)


def report_line(
    trial_id: int,
    reports: Mapping[str, Mapping[str, Any]],
    *,
    with_trial: bool,
    pace: Mapping[str, Any] | None = None,
) -> str:
    """Return one line about one batch: ``epoch 3  training  loss 0.15  validation  val_loss 0.12  98 samples/s``.

    Args:
        trial_id: the trial that reported it.
        reports: MetricsWorkloads of the same batch, by ``training`` and ``validation``; at least one.
        with_trial: whether the line begins with the trial.
        pace: the trial's speed, as in the REST API; None if unknown.
    """
    found = {kind: _metrics(reports[kind]) for kind in ("training", "validation") if kind in reports}
    epochs = next((metrics["epochs"] for metrics in found.values() if "epochs" in metrics), None)
    batch = next(report["totalBatches"] for report in reports.values())
    parts = [f"batch {batch}" if epochs is None else f"epoch {number_text(epochs)}"]
    for kind, metrics in found.items():
        parts += [kind, *named_metrics(metrics)]
    parts += pace_texts(pace)
    return "  ".join([f"trial {trial_id}", *parts] if with_trial else parts)


def named_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Return metrics as ``name value``, the losses first, without counters and anything nested."""
    names = [name for name in metrics if name not in COUNTERS and not isinstance(metrics[name], dict | list)]
    names.sort(key=lambda name: "loss" not in name)
    return [f"{name} {metric_text(metrics[name])}" for name in names[:_SHOWN_METRICS]]


def _trial_text(trial: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
    training = (trial.get("summaryMetrics") or {}).get("avg_metrics") or {}
    parts = []
    epochs = training.get("epochs", {}).get("last")
    if epochs is not None:
        planned = _planned_epochs(experiment["config"])
        parts.append(f"epoch {number_text(epochs)}" + (f"/{planned}" if planned else ""))
    else:
        parts.append(f"batch {trial.get('totalBatchesProcessed', 0)}")
    if "loss" in training:
        parts.append(f"loss {metric_text(training['loss'].get('last'))}")
    return "  ".join(parts)


def _trials_text(trials: Sequence[Mapping[str, Any]]) -> str:
    if not trials:
        return "waiting for slots"
    done = sum(is_over(trial["state"]) for trial in trials)
    failed = sum(trial["state"] == named(ERROR) for trial in trials)
    return f"{done} of {len(trials)} trials done" + (f", {failed} failed" if failed else "")


def _latest(trials: Sequence[Mapping[str, Any]], best: Best) -> str:
    value = _metrics(trials[0].get("latestValidation")).get(best.metric, best.value)
    return f"{best.metric} {metric_text(value)}"


def _metrics(report: Mapping[str, Any] | None) -> Mapping[str, Any]:
    metrics: Mapping[str, Any] = ((report or {}).get("metrics") or {}).get("avgMetrics") or {}
    return metrics


def _planned_epochs(config: Mapping[str, Any]) -> int | None:
    length = (config.get("searcher") or {}).get("max_length")
    epochs = length.get("epochs") if isinstance(length, Mapping) else None
    return epochs if isinstance(epochs, int) else None
