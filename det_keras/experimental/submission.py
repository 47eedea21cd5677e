"""Submits an experiment from a script or a notebook: with the command that a user would type."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_keras.errors import DetError
from det_keras.scratch import Scratch

_CREATED = re.compile(r"Created experiment (\d+)")


def submit(
    config: Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
) -> int:
    """Create and activate an experiment; return its number.

    Args:
        config: its config, or the path of the file.
        folder: the context directory; None sends no files.
        environ: names the master and the user.

    Raises:
        DetError: it was not created; the message is that of the command.
    """
    with Scratch("submit") as drafts:
        path, empty = Path(drafts) / "config.yaml", Path(drafts) / "empty"
        empty.mkdir()
        if isinstance(config, Mapping):
            # JSON is YAML, and needs no library here.
            path.write_text(json.dumps(config), encoding="utf-8")
        else:
            path = Path(config)
        words = ["experiment", "create", str(path), str(empty if folder is None else folder)]
        command = [sys.executable, "-m", "det_keras.cli", *words]
        done = subprocess.run(command, env=environ, check=False, capture_output=True, text=True)
    created = _CREATED.search(done.stdout)
    if done.returncode or created is None:
        raise DetError(done.stderr.strip() or done.stdout.strip())
    # Notices about the config.
    sys.stderr.write(done.stderr)
    return int(created[1])
