"""The installed packages, as `pip freeze` names them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

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
