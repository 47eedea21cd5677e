"""What the comparison of a script with a copy of it is called for users, in a log and on a page."""

from __future__ import annotations

from collections.abc import Sequence

#: What to do about differences.
HINT = "See docs/exact-resume.md for what a script may not do."

_MOST_NAMED = 10
_LONGEST_LINE = 300


def verified_text(differences: Sequence[str], first: int, second: int) -> str:
    """Return what a comparison found, without a subject.

    Args:
        differences: what differs.
        first: the batch from which the copy resumed.
        second: the batch at which it was compared.

    Example:
        >>> verified_text([], 120, 180)
        'resumes exactly (verified at batches 120 to 180)'
        >>> verified_text(["the history"], 120, 180)
        'does NOT resume exactly: resumed from batch 120, it differs at batch 180 in the history.'
    """
    if not differences:
        return f"resumes exactly (verified at batches {first} to {second})"
    named = ", ".join(differences[:_MOST_NAMED])
    left = len(differences) - _MOST_NAMED
    more = f", and {left} more" if left > 0 else ""
    return (
        f"does NOT resume exactly: resumed from batch {first}, it differs at batch {second} in {named}{more}."
    )


def failure_of(code: int, output: str) -> str:
    """Return why a copy ended without a result.

    Args:
        code: its exit code.
        output: what it printed.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:_LONGEST_LINE]}" if lines and code else ""
    return f"the copy ended with exit code {code} before the second checkpoint{last}"
