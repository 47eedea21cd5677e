"""How long it takes until something happens: imports and the command line."""

from __future__ import annotations

import subprocess
import sys

from measure import in_turns, report

TURNS = 11


def run(*arguments: str) -> None:
    """Run Python and wait for it."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


bare, package, httpx, help_text = in_turns(
    TURNS,
    lambda: run("-c", "pass"),
    lambda: run("-c", "import det_keras"),
    lambda: run("-c", "import httpx"),
    lambda: run("-m", "det_keras.cli", "--help"),
)
report(
    "import det_keras, above bare Python", 1000 * (package - bare), unit="ms", goal=60,
    detail=f"bare Python {1000 * bare:.0f} ms",
)  # fmt: skip
report(
    "det --help, whole process", 1000 * help_text, unit="ms", goal=150,
    detail=f"importing httpx alone takes {1000 * httpx:.0f} ms",
)  # fmt: skip
