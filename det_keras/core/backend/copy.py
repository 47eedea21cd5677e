"""The backend of a copy of a script, which resumes from a checkpoint of a run and is compared at a later one.

A copy is a local run in a folder of its own, also if the run is a trial: nothing that it does is reported. It begins
with the checkpoints that the run had, and stores its own beside them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from det_keras import storage
from det_keras.cluster_info import ClusterInfo, CopyInfo
from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.errors import CheckpointError
from det_keras.files import write_file


class CopyBackend(LocalBackend):
    """Stores what a copy reports in its folder.

    Args:
        run: the open directory; closed with the backend.
        original_config: returns the config of the trial as the user wrote it; None in a local run.
    """

    # It repeats a run that has a record.
    keeps_provenance = False

    def __init__(self, run: RunDirectory, original_config: Callable[[], str | None]) -> None:
        super().__init__(run)
        self._original_config = original_config

    def original_config(self) -> str | None:
        return self._original_config()


def open_copy(copy: CopyInfo, info: ClusterInfo | None) -> tuple[CopyBackend, storage.Storage]:
    """Return the backend and the storage of a copy, with the checkpoints that it needs.

    Args:
        copy: what the copy was told.
        info: the trial that it is a copy of; None for a local run.

    Raises:
        CheckpointError: a checkpoint was removed or cannot be read; that is the result.
    """
    # Whatever else runs on this machine comes first.
    os.nice(19)
    folder = Path(copy.folder)
    run = RunDirectory(folder / "run")
    try:
        _fetch(copy.storage, copy.checkpoints, run.checkpoints)
        _fetch(copy.storage, [copy.expected], folder)
    except (CheckpointError, OSError) as error:
        write_result(copy, {"failure": f"a checkpoint cannot be read: {error}"})
        raise
    if copy.seed is not None:
        run.update(seed=copy.seed)
    backend = CopyBackend(run, lambda: None if info is None else _original_config(info))
    return backend, storage.DirectoryStorage(run.checkpoints)


def expected_checkpoint(copy: CopyInfo) -> Path:
    """Return the directory of the checkpoint to compare with, on any worker once `open_copy` has returned."""
    return Path(copy.folder) / copy.expected


def write_result(copy: CopyInfo, result: Mapping[str, Any]) -> None:
    """Write the result of a copy, unless there is one.

    Args:
        copy: what the copy was told.
        result: ``differences``, a list, or ``failure``, the reason why nothing was compared.
    """
    if not Path(copy.result).exists():
        write_file(Path(copy.result), json.dumps(result))


def _fetch(section: Mapping[str, Any], uuids: Iterable[str], target: Path) -> None:
    source = storage.from_config(section)
    for uuid in uuids:
        with source.restore_path(uuid) as directory:
            # Hard links where that is possible: stored files never change, and may have gigabytes.
            shutil.copytree(directory, target / uuid, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, target: str) -> None:
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)


def _original_config(info: ClusterInfo) -> str | None:
    # Imported here: a copy of a local run needs no HTTP client.
    from det_keras.core.backend.trial import open_task_session

    assert info.trial is not None
    with open_task_session(info) as session:
        config: str | None = session.api.experiments.get(info.trial.experiment_id).get("originalConfig")
    return config
