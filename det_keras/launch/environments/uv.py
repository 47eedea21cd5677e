"""uv: where it is, and how its failures are reported."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Sequence

#: What a user without uv is told.
MISSING = (
    "`environment.pip` and `environment.requirements` need uv, which was not found. Install it with "
    "`pip install 'det_keras[environments]'`, or put another uv on the PATH."
)

# In uv's own words. A package or version that does not exist is not among them: asking again would not help.
_NETWORK = re.compile(
    r"error sending request|operation timed out|request timed out|connection (?:closed|reset|refused)|dns error|"
    r"HTTP status server error|network is unreachable|temporary failure in name resolution",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def find_uv(search_path: str | None) -> str | None:
    """Return the path of uv: of the extra `environments`, else of the search path; None if there is none.

    Args:
        search_path: the PATH of the task.
    """
    own = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for path in (os.pathsep.join(own), search_path):
        found = shutil.which("uv", path=path)
        if found is not None:
            return found
    return None


def is_transient(output: Sequence[str]) -> bool:
    """Return whether uv failed for a reason that may be gone at the next attempt: the network."""
    # A certificate that is not trusted is an error of the connection as well, and stays one.
    is_permanent = any("certificate" in line for line in output)
    return not is_permanent and any(_NETWORK.search(line) for line in output)


def explain(output: Sequence[str], folder: str) -> str:
    """Return why uv failed.

    Args:
        output: the lines that it printed.
        folder: the directory with the environments.
    """
    if any(_DISK_FULL.search(line) for line in output):
        return f"The disk is full: the environment is written to {folder}. Free some space there."
    begins = next((index for index, line in enumerate(output) if re.match(r"\s*(?:error|×)", line)), 0)
    words = " ".join(line.strip() for line in output[begins:] if line.strip())
    return words or "uv printed no reason."
