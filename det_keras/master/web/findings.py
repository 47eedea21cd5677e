"""What a search found, what the curves of a trial say, and whether configurations differ, in sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from det_keras.display import flat_hparams, metric_text, number_text, seconds_text
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.reports.points import EVERY_POINT, Floats
from det_keras.master.reports.series import Series
from det_keras.master.reports.verdicts import LEAST_CHANCE, chance, fewest_runs, verdict
from det_keras.master.web.experiments import varied
from det_keras.master.web.metric_choice import finite
from det_keras.master.web.plotting.importance import importances
from det_keras.master.web.plotting.points import points_of
from det_keras.master.web.plotting.rungs import stopped_at
from det_keras.master.web.plotting.space import scales
from det_keras.protocol.metrics import TRAINING, VALIDATION
from det_keras.protocol.states import TERMINAL, bare, is_over

_MOST_HPARAMS = 12
_MOST_IMPORTANT = 3
_TEXT_LENGTH = 80
_TWO = 2
# For one trial, and for several.
_ENDINGS = {
    "COMPLETED": ("completed", "completed"),
    "STOPPED": ("was stopped by the search", "were stopped by the search"),
    "ERROR": ("failed", "failed"),
    "CANCELED": ("was canceled", "were canceled"),
    "OPEN": ("has not ended", "have not ended"),
}


def findings(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Return the results of an experiment as sentences: the best trial, the ends of trials, importances, the duration.

    Args:
        experiment: the `Experiment` of the REST API.
        trials: its trials.
        brackets: the rungs of its search.
    """
    sentences = (
        _best(experiment, trials),
        _ends(trials, stopped_at(trials, brackets)),
        _important(experiment, trials, brackets),
        _duration(experiment),
    )
    return [sentence for sentence in sentences if sentence]


def curve_findings(
    master: EmbeddedMaster, trial: Mapping[str, Any], experiment: Mapping[str, Any]
) -> list[str]:
    """Return what the curves of a trial say: that it overfits since an epoch, or makes no progress since then.

    Args:
        master: has the curves.
        trial: the `Trial` of the REST API.
        experiment: its `Experiment`.
    """
    searched = experiment["searcherMetric"]
    directions = {searched: bool(experiment["config"]["searcher"]["smaller_is_better"])}
    # Of other metrics it is not known which values are better.
    directions.setdefault("val_loss", True)
    sentences = (_curve(master, trial["id"], name, smaller) for name, smaller in directions.items())
    return [sentence for sentence in sentences if sentence]


def seed_finding(
    trials: Sequence[Mapping[str, Any]],
    experiments: Mapping[int, Mapping[str, Any]],
    differing: Sequence[str],
) -> str:
    """Return whether two configurations differ by more than the noise of their seeds; empty if there are not two.

    Args:
        trials: of the REST API; those with the same hyperparameters are runs of one configuration.
        experiments: by their numbers.
        differing: the hyperparameters that differ.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for trial in trials:
        values = dict(flat_hparams(trial["hparams"]))
        name = ", ".join(f"{key}={number_text(values[key])}" for key in differing if key in values)
        groups.setdefault(name[:_TEXT_LENGTH], []).append(trial)
    searched = {
        (one["searcherMetric"], one["config"]["searcher"]["smaller_is_better"])
        for one in experiments.values()
    }
    if len(groups) != _TWO or len(searched) != 1:
        return ""
    ((metric, smaller_is_better),) = searched
    runs = {
        name: [value for one in group if (value := finite(one["searcherMetricValue"])) is not None]
        for name, group in groups.items()
    }
    (first, a), (second, b) = sorted(
        runs.items(), key=lambda one: sum(one[1]) / max(len(one[1]), 1), reverse=not smaller_is_better
    )
    if min(len(a), len(b)) < fewest_runs():
        return (
            f"Whether {first} and {second} differ by more than the noise of seeds cannot be told from {len(a)} and "
            f"{len(b)} runs: train each at least {fewest_runs()} times, with different seeds."
        )
    share = chance(a, b)
    means = f"the means of {metric} are {metric_text(sum(a) / len(a))} of {len(a)} runs and " + (
        f"{metric_text(sum(b) / len(b))} of {len(b)}, and chance alone makes such a difference in {share:.1%} of cases"
    )
    if share <= LEAST_CHANCE:
        return f"{first} is better than {second} by more than the noise of seeds: {means}."
    return f"{first} and {second} do not differ within the noise of seeds: {means}."


def _curve(master: EmbeddedMaster, trial_id: int, name: str, smaller_is_better: bool) -> str:
    found = master.curves.read([trial_id], group=VALIDATION, metric=name, most_points=EVERY_POINT)
    if not found:
        return ""
    (series,) = found
    twin = name.removeprefix("val_")
    trained = master.curves.read([trial_id], group=TRAINING, metric=twin, most_points=EVERY_POINT)
    training = _at(series, trained[0]) if trained else None
    said = verdict(series.values, training, smaller_is_better=smaller_is_better)
    if said is None:
        return ""
    epoch = None if series.epochs is None else float(series.epochs[said.place])
    is_known = epoch is not None and math.isfinite(epoch)
    since = f"epoch {number_text(epoch)}" if is_known else f"batch {series.batches[said.place]:,}"
    shown, value = _isolated(name), metric_text(float(series.values[said.place]))
    if said.kind == "plateau":
        return f"No progress of {shown} since {since} ({value})."
    last = metric_text(float(series.values[-1]))
    return (
        f"Overfits since {since}: {shown} went from {value} to {last}, while {_isolated(twin)} of training "
        "became better."
    )


def _at(series: Series, other: Series) -> Floats:
    """Return the values of another curve at the batches of a curve: the last ones before, NaN without any."""
    places = np.searchsorted(other.batches, series.batches, side="right") - 1
    return np.where(places >= 0, other.values[np.maximum(places, 0)], np.nan)


def _best(experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> str:
    metric = _isolated(experiment["searcherMetric"])
    best = next((trial for trial in trials if trial["id"] == experiment["bestTrialId"]), None)
    if best is None:
        return f"No trial has reported {metric} yet."
    direction = "smallest" if experiment["config"]["searcher"]["smaller_is_better"] else "largest"
    value = metric_text(experiment["bestTrialSearcherMetric"])
    hparams = dict(flat_hparams(best["hparams"]))
    names = [name for name in varied(trials) if name in hparams]
    values = [
        f"{_isolated(name)} = {_isolated(number_text(hparams[name]))}" for name in names[:_MOST_HPARAMS]
    ]
    if len(names) > _MOST_HPARAMS:
        values.append(f"{len(names) - _MOST_HPARAMS} more hyperparameters")
    where = f", with {_listed(values)}" if values else ""
    return f"Trial {best['id']} has the {direction} {metric}, {value}{where}."


def _ends(trials: Sequence[Mapping[str, Any]], stopped: Mapping[int, str]) -> str:
    counts = Counter(_ending(trial, stopped) for trial in trials)
    parts = [
        f"{counts[ending]} {one if counts[ending] == 1 else many}"
        for ending, (one, many) in _ENDINGS.items()
        if counts[ending]
    ]
    if not parts:
        return ""
    total = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    return f"Of {total}, {_listed(parts)}."


def _ending(trial: Mapping[str, Any], stopped: Mapping[int, str]) -> str:
    if trial["id"] in stopped:
        return "STOPPED"
    state = bare(trial["state"])
    return state if state in TERMINAL else "OPEN"


def _important(
    experiment: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    brackets: Sequence[Mapping[str, Any]],
) -> str:
    points = points_of(trials, brackets)
    method, found = importances(points, scales(experiment["config"]["hyperparameters"]))
    if not found:
        return ""
    names = [f"{_isolated(one.name)} ({one.value:.2f})" for one in found[:_MOST_IMPORTANT]]
    if len(names) == 1:
        return f"The only hyperparameter that varies is {_isolated(found[0].name)}."
    return f"The most important hyperparameters are {_listed(names)}, by {method}."


def _duration(experiment: Mapping[str, Any]) -> str:
    duration = seconds_text(experiment["duration"])
    if is_over(experiment["state"]):
        return f"The experiment took {duration}."
    return f"The experiment has taken {duration} so far."


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _isolated(text: str) -> str:
    """Return a shortened text whose writing direction does not affect the sentence (Unicode's FSI and PDI)."""
    short = text if len(text) <= _TEXT_LENGTH else f"{text[: _TEXT_LENGTH - 1]}…"
    return f"\u2068{short}\u2069"
