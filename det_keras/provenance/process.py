"""What a process is: its command, machine, user, directory, Python and packages."""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from det_keras.about import __version__
from det_keras.config.secrets import hide_arguments
from det_keras.protocol.values import now, timestamp
from det_keras.provenance.packages import installed_packages


def describe_process(argv: Sequence[str], directory: Path | str) -> dict[str, Any]:
    """Return what a process is: its command, machine, user, directory, Python and packages.

    Args:
        argv: its command line; secrets in it are hidden.
        directory: its working directory.
    """
    system = os.uname()
    return {
        "time": timestamp(now()),
        "command": shlex.join(hide_arguments(argv)),
        "host": socket.gethostname(),
        "user": _user(),
        "directory": str(directory),
        "system": f"{system.sysname} {system.release} {system.machine}",
        "python": platform.python_version(),
        "version": __version__,
        "packages": installed_packages(),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # Containers run as users that are not in the list.
        return str(os.getuid())
