"""Where a submission comes from: the command, this machine, its packages, and the repository of the files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from det_keras.provenance.capture import Capture, is_enabled

#: How long a submission waits for its record, which usually is complete before.
PATIENCE_S = 1.0


def capture_submission(context_directory: str | None) -> Capture:
    """Start to capture the record of a submission, and return at once.

    Args:
        context_directory: the submitted directory, whose repository is read; None for the working directory.
    """
    directory = Path(context_directory or ".").absolute()
    return Capture(lambda: _record(directory) if is_enabled(os.environ) else {})


def _record(directory: Path) -> dict[str, Any]:
    # Imported here, on the thread of the capture.
    from det_keras.provenance.process import describe_process
    from det_keras.provenance.repository import read_repository

    try:
        repository = read_repository(directory, os.environ)
    except OSError:
        # Git is not installed.
        repository = None
    process = describe_process(["det", *sys.argv[1:]], Path.cwd())
    return {**process, **({} if repository is None else {"repository": repository})}
