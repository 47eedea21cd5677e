"""Converts old search methods and lengths to the current ones, after the layers of a config are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras.config.folding import Folding, as_int, section_of
from det_keras.config.kinds import Kind, Place, shown
from det_keras.config.searching.budget import bracket_rungs, trials_for_budget
from det_keras.config.searching.lengths import Length, Unit
from det_keras.config.searching.searcher import ASHA, Searcher
from det_keras.errors import ConfigError

_REMOVED = {
    "pbt": "was removed. Use `adaptive_asha` or `random`.",
    "custom": "was removed. Use one of the built-in methods, such as `adaptive_asha` or `random`.",
}
# Replaces removed methods, so that the rest of the config is still checked.
_PLACEHOLDER = {"name": "random", "metric": "unknown", "max_trials": 1}
_SIMPLE_MOST_TRIALS = 2000
# With more rungs, a rung would have more trials than any budget allows.
_MOST_RUNGS = 30


def refuse_removed_method(folding: Folding) -> None:
    """Refuse a searcher with a removed method."""
    name = section_of(folding.config, "searcher").get("name")
    if isinstance(name, str) and name in _REMOVED:
        folding.refuse("searcher.name", f"`{name}` {_REMOVED[name]}")
        folding.config["searcher"] = dict(_PLACEHOLDER)


def settle_searcher(folding: Folding) -> None:
    """Convert the searcher of a merged config to a current method and length."""
    searcher = section_of(folding.config, "searcher")
    _settle_method(folding, searcher)
    if searcher.get("name") in ASHA:
        _settle_asha_length(folding, searcher)
    else:
        _give_unit(folding, searcher)


def _settle_method(folding: Folding, searcher: dict[str, Any]) -> None:
    name = searcher.get("name")
    if name == "asha":
        searcher["name"] = "async_halving" if searcher.get("num_rungs") is not None else "adaptive_asha"
        folding.notices.append(f"`searcher.name: asha` is read as `{searcher['name']}`.")
    elif name == "adaptive_simple":
        _settle_adaptive_simple(folding, searcher)
    elif name == "adaptive":
        _settle_budgeted(folding, searcher, "adaptive_asha")
    elif name == "sync_halving" or (name == "async_halving" and searcher.get("budget") is not None):
        _settle_budgeted(folding, searcher, "async_halving")


def _settle_adaptive_simple(folding: Folding, searcher: dict[str, Any]) -> None:
    searcher["name"] = "adaptive_asha"
    trials = as_int(searcher.get("max_trials"))
    if trials is not None and trials > _SIMPLE_MOST_TRIALS:
        folding.refuse(
            "searcher.max_trials", f"is {trials}; `adaptive_simple` takes at most {_SIMPLE_MOST_TRIALS}."
        )
    folding.notices.append(
        "`searcher.name: adaptive_simple` is read as `adaptive_asha`, which splits the trials over its brackets "
        "differently and does not wait for a rung to fill."
    )


def _settle_budgeted(folding: Folding, searcher: dict[str, Any], method: str) -> None:
    old = searcher["name"]
    searcher["name"] = method
    searcher.pop("train_stragglers", None)
    given = searcher.pop("budget", None)
    budget = _length(folding, "searcher.budget", given)
    trials = searcher.get("max_trials")
    if trials is None:
        if given is None:
            folding.refuse("searcher.budget", f"is required for `{old}`, or give `max_trials`.")
        # One trial is a placeholder if the number cannot be computed, so that only the cause is reported.
        trials = searcher["max_trials"] = _trials(folding, searcher, budget, method) or 1
        folding.notices.append(
            f"`searcher.name: {old}` with a budget is read as `{method}` with `max_trials: {trials}`."
        )
        return
    if old != method:
        folding.notices.append(f"`searcher.name: {old}` is read as `{method}`.")
    if given is not None:
        folding.notices.append(
            f"`searcher.budget` is ignored: `max_trials: {shown(trials)}` is given as well."
        )


def _length(folding: Folding, path: str, raw: Any) -> Length | None:
    """Return the length at `path`; None if there is none, or if it is invalid, which is recorded."""
    if raw is None:
        return None
    try:
        return Length.parse(raw, path=path, minimum=1)
    except ConfigError as error:
        folding.problems.extend(error.problems)
        return None


def _trials(folding: Folding, searcher: Mapping[str, Any], budget: Length | None, method: str) -> int | None:
    raw_length = searcher.get("max_length")
    if budget is None or raw_length is None:
        return None
    try:
        length = Length.parse(raw_length, minimum=1)
    except ConfigError:
        return None  # validation reports it
    rungs = _rungs(folding, searcher, method)
    divisor = _valid(searcher, "divisor", 4)
    lengths = _same_unit(folding, length, budget)
    if rungs is None or divisor is None or lengths is None:
        return None
    full, total = lengths
    if total <= full:
        folding.refuse("searcher.budget", f"is {budget}; it must exceed the {length} of one trial.")
        return None
    try:
        return trials_for_budget(full, total, rungs, divisor)
    except OverflowError:
        folding.refuse("searcher.divisor", f"is too large for {rungs[0]} rungs, received {shown(divisor)}.")
        return None


def _rungs(folding: Folding, searcher: Mapping[str, Any], method: str) -> list[int] | None:
    if method == "async_halving":
        field = "num_rungs"
        count = _valid(searcher, field, None)
        rungs = [] if count is None else [count]
    elif searcher.get("bracket_rungs"):
        field = "bracket_rungs"
        rungs = sorted(_valid(searcher, field, ()) or (), reverse=True)
    else:
        field = "max_rungs"
        mode, most = _valid(searcher, "mode", "standard"), _valid(searcher, field, 5)
        rungs = [] if mode is None or most is None else bracket_rungs(mode, min(most, _MOST_RUNGS + 1))
    if rungs and rungs[0] > _MOST_RUNGS:
        message = f"must be at most {_MOST_RUNGS} with a budget, received {shown(searcher[field])}."
        folding.refuse(f"searcher.{field}", message)
        return None
    return rungs or None


def _valid(searcher: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return the field's value or `default`; None if it is invalid, which the validation reports."""
    raw = searcher.get(name)
    if raw is None:
        return default
    kind: Kind[Any] = Searcher.kind_of(name)
    try:
        return kind.parse(raw, Place())
    except ConfigError:
        return None


def _same_unit(folding: Folding, length: Length, budget: Length) -> tuple[int, int] | None:
    if length.unit is budget.unit:
        return length.value, budget.value
    hparams = section_of(folding.config, "hyperparameters")
    batch_size = hparams.get("global_batch_size")
    if isinstance(batch_size, Mapping):
        batch_size = batch_size.get("val")
    records = as_int(folding.config.get("records_per_epoch")) or 0
    try:
        return length.to_batches(as_int(batch_size), records), budget.to_batches(as_int(batch_size), records)
    except ValueError:
        folding.refuse(
            "searcher.budget",
            f"is in {budget.unit.value}, `max_length` in {length.unit.value}. Use one unit for both.",
        )
        return None


def _settle_asha_length(folding: Folding, searcher: dict[str, Any]) -> None:
    length, metric, time = (searcher.get(name) for name in ("max_length", "time_metric", "max_time"))
    if metric is not None or time is not None or length is None:
        if length is not None and metric is not None and time is not None and length != {metric: time}:
            _ignore_length(folding, searcher)
        _default(searcher, "stop_once", True)
        if searcher["stop_once"] is False and searcher.get("max_length") is None:
            _give_length(folding, searcher)
        return
    # Configs with lengths are of releases that paused and promoted trials; stopping was added later.
    _default(searcher, "stop_once", False)
    if searcher["name"] == "adaptive_asha":
        _give_unit(folding, searcher)
    try:
        parsed = Length.parse(searcher.get("max_length"), minimum=1)
    except ConfigError:
        return
    searcher["time_metric"], searcher["max_time"] = parsed.unit.value, parsed.value
    folding.notices.append(
        f"`searcher.max_length: {{{parsed.unit.value}: {parsed.value}}}` is read as "
        f"`time_metric: {parsed.unit.value}` with `max_time: {parsed.value}`."
    )


def _ignore_length(folding: Folding, searcher: dict[str, Any]) -> None:
    """Remove the length of a search with a `time_metric`, after checking it, with a notice."""
    length = searcher.pop("max_length")
    has_no_unit = searcher["name"] == "adaptive_asha" and (as_int(length) or 0) >= 1
    if has_no_unit or _length(folding, "searcher.max_length", length) is not None:
        folding.notices.append(
            f"`searcher.max_length` is ignored: `time_metric: {searcher['time_metric']}` and "
            f"`max_time: {searcher['max_time']}` are given as well."
        )


def _give_length(folding: Folding, searcher: dict[str, Any]) -> None:
    """Set the length of a search that promotes trials, which must give them lengths."""
    metric, time = searcher.get("time_metric"), as_int(searcher.get("max_time"))
    if metric is None or time is None or time < 1:
        return  # validation reports it
    if metric in [unit.value for unit in Unit]:
        searcher["max_length"] = {metric: time}
    else:
        folding.refuse(
            "searcher.stop_once",
            f"false pauses trials at a length, which must be in batches, records or epochs, not in {metric!r}. "
            "Use one of these as `time_metric`, or `stop_once: true`.",
        )


def _give_unit(folding: Folding, searcher: dict[str, Any]) -> None:
    given = searcher.get("max_length")
    number = as_int(given)
    if number is None:
        return
    if number < 1:
        folding.refuse("searcher.max_length", f"must be at least 1, received {shown(given)}.")
        # A valid placeholder, so that a missing length is not reported as well.
        number = 1
    else:
        folding.notices.append(f"`searcher.max_length: {number}` has no unit and is read as {number} epochs.")
    searcher["max_length"] = {Unit.EPOCHS.value: number}


def _default(searcher: dict[str, Any], name: str, value: Any) -> None:
    if searcher.get(name) is None:
        searcher[name] = value
