"""The pages of experiments: the list, and overview, search, checkpoints, code and config of each."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from det_keras.config.secrets import without_secret_variables
from det_keras.config.yaml_text import dump_yaml
from det_keras.display import flat_hparams
from det_keras.master.api.checkpoints import archive_reply
from det_keras.master.errors import NotFoundError
from det_keras.master.server.calls import MasterDep, open_download
from det_keras.master.web.alerts import search_alerts, verification_alerts
from det_keras.master.web.metric_choice import metrics_of
from det_keras.master.web.provenance.record import shown_record
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest
from det_keras.master.web.teams.audit import last_changes
from det_keras.protocol.states import DELETED, bare, named

router = APIRouter(include_in_schema=False)

_LONGEST_FILE = 400_000
_NAMES_OF_ACTIONS = {
    "ACTIVE": ("pause", "cancel", "kill"),
    "PAUSED": ("activate", "cancel", "kill"),
    "STOPPING": ("kill",),
    "OVER": ("continue", "archive"),
    "UNMANAGED": ("close",),
}


@router.get("/")
async def first_page() -> Response:
    """Redirect to the list of experiments."""
    return RedirectResponse("/experiments", status_code=303)


@router.get("/experiments")
async def listing(request: Request, archived: bool = False) -> Response:
    """List experiments, latest first.

    Args:
        request: the page's request.
        archived: whether to list archived experiments instead.
    """
    answer = await Rest(request).get("/experiments", archived=str(archived).lower(), limit=-2)
    return await page(request, "experiments.html", archived=archived, total=answer["pagination"]["total"])


@router.get("/experiments/{experiment_id}")
async def overview(request: Request, master: MasterDep, experiment_id: int) -> Response:
    """Show an experiment, its curves and its trials."""
    rest = Rest(request)
    shown, trials, changes, compared = await asyncio.gather(
        experiment_head(rest, experiment_id),
        trials_of(rest, experiment_id),
        last_changes(rest, "experiment", experiment_id),
        rest.get(f"/experiments/{experiment_id}/verification"),
    )
    return await page(
        request,
        "experiment.html",
        **shown,
        tab="overview",
        alerts=[
            *verification_alerts(compared["verification"]),
            *await search_alerts(master, rest, shown["experiment"], trials),
        ],
        trials=trials,
        changes=changes,
        verification=compared["verification"],
        states=Counter(trial["state"] for trial in trials),
        has_metrics=bool(metrics_of(trials)),
    )


@router.get("/experiments/{experiment_id}/checkpoints")
async def checkpoints(request: Request, experiment_id: int, deleted: bool = False) -> Response:
    """List the checkpoints of an experiment.

    Args:
        request: the page's request.
        experiment_id: number of the experiment.
        deleted: whether to list deleted checkpoints as well.
    """
    rest = Rest(request)
    shown, answer = await asyncio.gather(
        experiment_head(rest, experiment_id), rest.get(f"/experiments/{experiment_id}/checkpoints")
    )
    rows = latest_first(answer["checkpoints"])
    left = kept(rows)
    return await page(
        request,
        "experiment_checkpoints.html",
        **shown,
        tab="checkpoints",
        checkpoints=rows if deleted else left,
        deleted=deleted,
        deleted_count=len(rows) - len(left),
    )


@router.get("/experiments/{experiment_id}/code")
async def code(request: Request, experiment_id: int, file: str = "") -> Response:
    """Show the submitted code.

    Args:
        request: the page's request.
        experiment_id: number of the experiment.
        file: path of the file to show; empty for the first Python file.

    Raises:
        NotFoundError: there is no such file.
    """
    rest = Rest(request)
    shown, answer, origin = await asyncio.gather(
        experiment_head(rest, experiment_id),
        rest.get(f"/experiments/{experiment_id}/model_def"),
        rest.get(f"/experiments/{experiment_id}/provenance"),
    )
    files = await anyio.to_thread.run_sync(files_of_archive, answer["b64Tgz"])
    name = file or next((path for path in files if path.endswith(".py")), next(iter(files), ""))
    if name and name not in files:
        raise NotFoundError(f"Experiment {experiment_id} has no file {name!r}.")
    text = _text(files[name]) if name else None
    provenance = shown_record(origin["provenance"])
    return await page(
        request,
        "experiment_code.html",
        **shown,
        tab="code",
        files=files,
        file=name,
        text=text,
        provenance=provenance,
    )


@router.get("/experiments/{experiment_id}/code.tar.gz")
async def code_archive(request: Request, experiment_id: int) -> Response:
    """Return the submitted code as an archive."""
    answer = await Rest(request).get(f"/experiments/{experiment_id}/model_def")
    headers = {"Content-Disposition": f'attachment; filename="experiment-{experiment_id}.tar.gz"'}
    return Response(base64.b64decode(answer["b64Tgz"]), media_type="application/gzip", headers=headers)


@router.get("/checkpoints/{uuid}/archive", dependencies=[Depends(open_download)])
def checkpoint_archive(master: MasterDep, uuid: str) -> Response:
    """Return the files of a checkpoint as a zip archive."""
    response = archive_reply(master, uuid, "application/zip")
    response.headers["Content-Disposition"] = f'attachment; filename="checkpoint-{uuid}.zip"'
    return response


@router.get("/experiments/{experiment_id}/config")
async def config(request: Request, experiment_id: int) -> Response:
    """Show the config, with its secrets hidden."""
    shown = await experiment_head(Rest(request), experiment_id)
    text = dump_yaml(without_secret_variables(shown["experiment"]["config"]))
    return await page(request, "experiment_config.html", **shown, tab="config", text=text)


def varied(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the hyperparameters in which trials differ; all names for a single trial."""
    columns = [dict(flat_hparams(trial["hparams"])) for trial in trials]
    return differing(columns) if len(columns) > 1 else [name for column in columns for name in column]


def differing(columns: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values differ between mappings."""
    values: dict[str, set[str]] = {}
    for column in columns:
        for name, value in column.items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, found in values.items() if len(found) > 1]


def kept(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the checkpoints that were not deleted."""
    return [checkpoint for checkpoint in checkpoints if checkpoint["state"] != named(DELETED)]


def latest_first(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return checkpoints by the time of their report, latest first."""
    return sorted(checkpoints, key=lambda checkpoint: checkpoint["reportTime"] or "", reverse=True)


async def experiment_head(rest: Rest, experiment_id: int) -> dict[str, Any]:
    """Return what all pages of an experiment show: the experiment, and the actions that its state allows."""
    experiment = (await rest.get(f"/experiments/{experiment_id}"))["experiment"]
    state = bare(experiment["state"])
    stage = state if state == "PAUSED" else "OVER"
    if state.startswith("STOPPING"):
        stage = "STOPPING"
    elif experiment["endTime"] is None and state != "PAUSED":
        stage = "ACTIVE"
    if experiment["unmanaged"] and stage != "OVER":
        stage = "UNMANAGED"
    actions = list(_NAMES_OF_ACTIONS[stage])
    if experiment["archived"]:
        actions = ["unarchive"]
    return {"experiment": experiment, "actions": actions}


async def trials_of(rest: Rest, experiment_id: int) -> list[dict[str, Any]]:
    """Return the trials of an experiment."""
    trials: list[dict[str, Any]] = (await rest.get(f"/experiments/{experiment_id}/trials", limit=-1))[
        "trials"
    ]
    return trials


def files_of_archive(archive: str) -> dict[str, bytes]:
    """Return the files of a base64 tar archive, by path."""
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as tar:
        members = [member for member in tar if member.isfile()]
        read = {member.name: tar.extractfile(member) for member in members}
        return {name: file.read(_LONGEST_FILE + 1) for name, file in sorted(read.items()) if file is not None}


def _text(content: bytes) -> str | None:
    """Return a file as text; None if it is binary or too long."""
    if len(content) > _LONGEST_FILE or b"\0" in content:
        return None
    return content.decode("utf-8", errors="replace")
