"""Where a training runs: its process, and the versions and GPUs that it trains with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_keras.core.gpus import load_nvml, open_gpus
from det_keras.provenance.process import describe_process
from det_keras.provenance.repository import read_repository


def training_record(environ: Mapping[str, str], *, with_repository: bool) -> dict[str, Any]:
    """Return the record of this process.

    Args:
        environ: the environment for git.
        with_repository: whether the working directory may belong to a repository of the user; that of a task of a
            master does not.
    """
    record = {**describe_process(sys.orig_argv, Path.cwd()), "gpus": _gpu_names()}
    for name in ("tensorflow", "keras"):
        # What is loaded, which need not be what is installed first on the path.
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            record[name] = version
    if with_repository:
        try:
            record["repository"] = read_repository(Path.cwd(), environ)
        except OSError:
            # Git is not installed.
            record["repository"] = None
    return record


def _gpu_names() -> list[str]:
    gpus = open_gpus(load_nvml())
    if gpus is None:
        return []
    try:
        return gpus.names()
    finally:
        gpus.close()
