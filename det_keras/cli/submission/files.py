"""Functions shared by the submission of experiments and jobs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_keras.cli.render import printable
from det_keras.cli.submission.context_directory import ContextFiles, bundle
from det_keras.display import size_text


def read_files(directory: str) -> ContextFiles:
    """Read a context directory, and print its size."""
    root = Path(directory).resolve()
    found = bundle(root)
    files = "1 file" if found.file_count == 1 else f"{found.file_count} files"
    print(f"Preparing files ({root}) to send to master... {size_text(found.size_bytes)} and {files}")
    sys.stdout.flush()
    for name in found.skipped:
        print(f"Not sent: {printable(name)} is neither a file nor a directory.", file=sys.stderr)
    return found


def print_notices(answer: Mapping[str, Any]) -> None:
    """Print the master's notices about a config."""
    for notice in answer.get("notices") or ():
        print(printable(str(notice)), file=sys.stderr)
