"""What one run of a trial knows to be acknowledged, in a file outside of the data root.

Each note is one line: ``line N`` for N printed lines, ``reported STEP``, ``checkpoint UUID``, ``resumed STEP``, or
``end``.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Notes"]


class Notes:
    """The notes of this process, and the lines that it prints."""

    def __init__(self) -> None:
        allocation_id = os.environ["DET_ALLOCATION_ID"]
        self._file = os.open(
            Path(os.environ["HISTORY_NOTES"]) / allocation_id, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        self._lines = 0

    def print_line(self) -> None:
        """Print the next numbered line, and note it once the pipe has it."""
        # The output is not buffered, and short enough to be written at once.
        print(f"line {self._lines}", flush=True)
        self._lines += 1
        self.add("line", self._lines)

    def add(self, kind: str, value: object = "") -> None:
        """Add a note."""
        os.write(self._file, f"{kind} {value}\n".encode())
