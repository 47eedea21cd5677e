"""What a process is: its command, machine, user, directory, Python and packages."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.about import __version__
from det_keras.config.secrets import hide_arguments
from det_keras.protocol.values import now, timestamp

if TYPE_CHECKING:
    from importlib.metadata import Distribution


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


_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE)
#: Setuptools and Ray, once imported, add folders of theirs to the path, with copies of packages for them alone.
_IN_A_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]+[^/\\]")


def installed_packages() -> list[str]:
    """Return ``name==version`` of each installed package, sorted by name.

    Addresses from which packages were installed are not included: they may contain credentials.
    """
    # Imported here: importing it takes longer than reading the packages.
    from importlib.metadata import distributions

    found: dict[str, str] = {}
    for distribution in distributions(path=[entry for entry in sys.path if not _is_in_a_package(entry)]):
        text = _metadata(distribution)
        # Both are in the head. `distribution.metadata` parses all of it, which takes ten times as long.
        name, version = _NAME.search(text), _VERSION.search(text)
        if name is not None and version is not None:
            # Of several on the path, Python imports the first.
            found.setdefault(re.sub(r"[-_.]+", "-", name[1]).lower(), f"{name[1]}=={version[1]}")
    return sorted(found.values(), key=str.lower)


def _is_in_a_package(entry: str) -> bool:
    # An egg is a package of its own, with an entry of its own.
    return _IN_A_PACKAGE.search(entry) is not None and not entry.endswith(".egg")


def _metadata(distribution: Distribution) -> str:
    try:
        return distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError):
        return ""
