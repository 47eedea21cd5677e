"""The page that forks an experiment: its config in an editor, checked while the user types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.config.yaml_text import dump_yaml, load_yaml
from det_keras.master.errors import NotFoundError
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

router = APIRouter(include_in_schema=False)

# Training the best trial longer begins with this multiple of its length.
_LONGER = 2


@router.get("/experiments/{experiment_id}/fork")
async def fork(request: Request, experiment_id: int, trial: int | None = None) -> Response:
    """Show the config of an experiment for a new one with the same code.

    Args:
        request: the page's request.
        experiment_id: number of the experiment.
        trial: a trial whose hyperparameters the new experiment trains, for twice its length; None for the same search.

    Raises:
        NotFoundError: the trial belongs to another experiment.
    """
    rest = Rest(request)
    shown = (await rest.get(f"/experiments/{experiment_id}"))["experiment"]
    text = shown["originalConfig"]
    if trial is not None:
        chosen = (await rest.get(f"/trials/{trial}"))["trial"]
        if chosen["experimentId"] != experiment_id:
            raise NotFoundError(f"Experiment {experiment_id} has no trial {trial}.")
        text = dump_yaml(_longer(load_yaml(text), shown["config"], chosen))
    return await page(request, "fork.html", experiment=shown, trial=trial, text=text)


def _longer(
    original: Mapping[str, Any], config: Mapping[str, Any], trial: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a config that trains the hyperparameters of one trial for longer."""
    searcher = config["searcher"]
    changed: dict[str, Any] = {
        "name": "single",
        "metric": searcher["metric"],
        "smaller_is_better": searcher["smaller_is_better"],
    }
    length = searcher.get("max_length")
    if isinstance(length, Mapping):
        changed["max_length"] = {unit: _LONGER * value for unit, value in length.items()}
    elif isinstance(length, int):
        changed["max_length"] = _LONGER * length
    name = original.get("name") or config["name"]
    return {
        **original,
        "name": f"{name}, best, longer",
        "hyperparameters": trial["hparams"],
        "searcher": changed,
    }
