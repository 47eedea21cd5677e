"""The results of a check, and how they are printed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from det_keras.cli.render import printable


class Outcome(str, enum.Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: what was checked, in one or two words.
        outcome: how it ended; only FAILED changes the exit code.
        text: what was found, with its values.
        fix: what to do about it; empty if there is nothing to do.
    """

    subject: str
    outcome: Outcome
    text: str
    fix: str = ""

    def show(self) -> None:
        """Print the result."""
        print(f"{self.subject:<10} {self.outcome.value:<7} {printable(self.text)}", flush=True)
        if self.fix:
            print(f"{'':<18} -> {printable(self.fix)}", flush=True)
