"""Detached runs of tests, on a master in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from det_keras.client import Session
from det_keras.core.backend.detached import DetachedBackend, DetachedPlace, start_run
from det_keras.core.backend.local import RunDirectory
from det_keras.storage import DirectoryStorage

CONFIG = "name: outside\nsearcher: {name: single, metric: val_loss}\n"


def open_detached(world: Any, root: Path, external_id: str | None, **options: Any) -> DetachedBackend:
    """Return the backend of a script that no master started; its files are below `root`."""
    token = world.home.token_file.read_text()
    session = Session("http://127.0.0.1:8080", token, transport=world.http._transport)
    experiment = session.api.experiments.create_unmanaged(CONFIG, external_id)["experiment"]
    run = start_run(session, experiment["id"], {"units": 4}, external_id)
    section = {"type": "directory", "container_path": str(root / "storage")}
    storage = DirectoryStorage(root / "storage")
    place = DetachedPlace(RunDirectory(root / f"run-{run.trial_id}-{run.run_id}"), storage, section)
    return DetachedBackend(run, session, place, **options)
