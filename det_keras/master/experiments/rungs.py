"""The rungs of adaptive searches: which trials reached each, and where a search stopped a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras import search
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.experiments.search_state import read_searcher
from det_keras.search.base import WORST


def brackets_of(
    session: Session, experiment: ExperimentRow, searcher: search.Searcher | None = None
) -> list[dict[str, Any]]:
    """Return the brackets of a search, each with its rungs and the trials that reached them, best first.

    They are those of the REST API. Of a search without rungs there are none.

    Args:
        session: has the trials.
        experiment: the experiment.
        searcher: that of the experiment, if it was read already.
    """
    config = config_of(experiment)
    # Without the state of the search, which is large, it is known whether there can be rungs.
    if not search.from_config(config).method.compared_lengths():
        return []
    query = select(TrialRow.request_id, TrialRow.id).where(TrialRow.experiment_id == experiment.id)
    trial_ids = {row.request_id: row.id for row in session.execute(query)}
    # In the search, smaller is always better.
    sign = 1.0 if config.searcher.smaller_is_better else -1.0
    brackets: dict[int, dict[str, Any]] = {}
    for rung in (searcher or read_searcher(session, experiment)).method.filled_rungs():
        results = [
            {"trialId": trial_ids[request_id], "metric": None if metric >= WORST else sign * metric}
            for request_id, metric in rung.results
            if request_id in trial_ids
        ]
        shown = brackets.setdefault(rung.bracket, {"trials": rung.trials, "rungs": []})
        shown["rungs"].append({"length": rung.length, "results": results})
    return list(brackets.values())


def last_rungs(brackets: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the highest rung that each trial reached, such as ``rung 1 of 3``, without those that reached the last.

    Args:
        brackets: of a search, as `brackets_of` returns them.
    """
    found: dict[int, str] = {}
    for bracket in brackets:
        rungs = bracket["rungs"]
        for number, rung in enumerate(rungs, start=1):
            for result in rung["results"]:
                found[result["trialId"]] = f"rung {number} of {len(rungs)}" if number < len(rungs) else ""
    return {trial: text for trial, text in found.items() if text}
