"""Where an adaptive search stopped each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.protocol.states import COMPLETED, named


def stopped_at(trials: Sequence[Mapping[str, Any]], brackets: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return where the search stopped trials that have ended before the last rung: ``stopped at rung 1 of 3``.

    Args:
        trials: trials of the REST API.
        brackets: the brackets of the search, from the REST API.
    """
    ended = {trial["id"] for trial in trials if trial["state"] == named(COMPLETED)}
    found: dict[int, str] = {}
    for bracket in brackets:
        rungs = bracket["rungs"]
        for number, rung in enumerate(rungs, start=1):
            for result in rung["results"]:
                text = f"stopped at rung {number} of {len(rungs)}" if number < len(rungs) else ""
                found[result["trialId"]] = text
    return {trial: text for trial, text in found.items() if text and trial in ended}


def at_rung(brackets: Sequence[Mapping[str, Any]], length: int) -> dict[int, float]:
    """Return the metric of each trial at the rung of a length."""
    return {
        result["trialId"]: result["metric"]
        for bracket in brackets
        for rung in bracket["rungs"]
        if rung["length"] == length
        for result in rung["results"]
        if result["metric"] is not None
    }
