"""What is wrong with how a seeded fault was found."""

from __future__ import annotations

import re
from typing import Any

KINDS = ("a bit of a weight flipped", "a weight changed", "an exchange skipped", "another order of data")
PERIOD = 5


def problem_of(fault: dict[str, Any], elsewhere: dict[str, Any]) -> str | None:
    """Return what is wrong, None if the fault was found and named within one period.

    Args:
        fault: its kind, the batch that it comes before, the variable that it hits, what was said of it, and a checksum
            of the weights in the end.
        elsewhere: the same of the other rank.
    """
    said = fault["said"]
    if said is None:
        # The lowest bits of a small weight may be rounded away by the next step: then nothing is left to find.
        is_gone = KINDS[fault["kind"]] == KINDS[0] and fault["weights"] == elsewhere["weights"]
        return None if is_gone else "not found"
    if KINDS[fault["kind"]] == "another order of data":
        return None if "The content of the data of rank 1 differs" in said else "not named"
    # A skipped exchange of one layer spoils the others with the next batch.
    if fault["variable"] not in said and KINDS[fault["kind"]] != "an exchange skipped":
        return "another variable named"
    before, after = map(int, re.findall(r"batch (\d+)", said))
    return None if before <= fault["batch"] <= after <= before + PERIOD else "another time named"
