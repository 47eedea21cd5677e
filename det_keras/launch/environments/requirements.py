"""Reads what is asked of an environment, so that equal requests find the same one.

uv reads the requirements itself. Here they are only followed as far as the result depends on them: files that they
include, local packages, and directories of wheels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from det_keras.launch.environments.request import BuildError, EnvironmentRequest

_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(
    r"(?P<name>-r|--requirements?|-c|--constraints?|-e|--editable|-f|--find-links)(?:[ \t=]+|(?<=-[rcef]))(?P<value>.+)"
)
_INCLUDED = frozenset({"-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints"})
_EDITABLE = frozenset({"-e", "--editable"})
# Where uv stores and prints does not change what it installs.
_WITHOUT_EFFECT = frozenset({"UV_CACHE_DIR", "UV_NO_PROGRESS", "UV_LINK_MODE", "UV_CONCURRENT_DOWNLOADS"})
_SETTINGS = ("pyproject.toml", "uv.toml")
_NOT_CONTENT = frozenset({"__pycache__", ".git", ".det_keras"})


@dataclass
class Requirements:
    """What is asked of an environment.

    Attributes:
        lines: all requirements and options, without comments, in order.
        content: pairs of a name and a digest for local files that the result depends on.
        has_editable: whether a requirement is to be installed as a link to its source.
    """

    lines: list[str] = field(default_factory=list)
    content: list[tuple[str, str]] = field(default_factory=list)
    has_editable: bool = False

    def digest(self, *more: str) -> str:
        """Return the SHA-256 of everything here and of `more`."""
        text = json.dumps([self.lines, self.content, self.has_editable, *more])
        return hashlib.sha256(text.encode()).hexdigest()


def read_requirements(
    request: EnvironmentRequest, context: Path, variables: Mapping[str, str]
) -> Requirements:
    """Return what is asked of an environment.

    Args:
        request: of the task.
        context: the context directory, unpacked.
        variables: the task's environment variables; those of uv count.

    Raises:
        BuildError: a requirements file cannot be read.
    """
    found = Requirements()
    for line in request.pip:
        _read_line(found, line.strip(), context, context)
    if request.requirements is not None:
        _read_file(found, context / request.requirements, context, ())
    for name in _SETTINGS:
        if (context / name).is_file():
            found.content.append((name, _digest(context / name)))
    for name in sorted(variables):
        if name.startswith("UV_") and name not in _WITHOUT_EFFECT:
            # Hashed: the address of an index may have a password.
            found.content.append((name, hashlib.sha256(variables[name].encode()).hexdigest()))
    return found


def _read_file(found: Requirements, path: Path, context: Path, parents: tuple[Path, ...]) -> None:
    if path in parents:
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        name = path.relative_to(context) if path.is_relative_to(context) else path
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BuildError(
            f"The requirements file {str(name)!r} cannot be read: {reason}. It must be in the context directory, and "
            "not excluded by .detignore."
        ) from error
    for line in _logical_lines(text):
        option = _OPTION.fullmatch(line)
        if option is not None and option["name"] in _INCLUDED and "://" not in option["value"]:
            found.lines.append(option["name"])
            _read_file(found, path.parent / option["value"].strip(), context, (*parents, path))
        else:
            _read_line(found, line, path.parent, context)


def _logical_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        stripped = _COMMENT.sub("", line).strip()
        if stripped:
            yield " ".join(stripped.split())


def _read_line(found: Requirements, line: str, folder: Path, context: Path) -> None:
    found.lines.append(line)
    option = _OPTION.fullmatch(line)
    target = line if option is None else option["value"]
    found.has_editable |= option is not None and option["name"] in _EDITABLE
    for path in _local_paths(target, folder, context):
        found.content.extend(_contents(path, context))


def _local_paths(target: str, folder: Path, context: Path) -> Iterator[Path]:
    """Yield the local file or directory that a requirement names."""
    text = target.partition(" @ ")[2] or target
    text = re.split(r"\s|;|#", text.strip())[0].partition("[")[0].removeprefix("file://")
    is_path = text.startswith((".", "/")) or "/" in text or text.endswith((".whl", ".gz", ".zip"))
    if not is_path or "://" in text:
        return
    # uv takes some as relative to the file and some to the directory in which it runs.
    for path in dict.fromkeys((folder / text, context / text)):
        if path.exists():
            yield path


def _contents(path: Path, context: Path) -> Iterator[tuple[str, str]]:
    root = path.resolve()
    files = [root] if root.is_file() else sorted(item for item in root.rglob("*") if item.is_file())
    is_ours = root.is_relative_to(context.resolve())
    for file in files:
        inner = file.relative_to(root.parent if root.is_file() else root)
        if _NOT_CONTENT.isdisjoint(inner.parts):
            yield str(inner), _digest(file) if is_ours else _stamp(file)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _stamp(path: Path) -> str:
    # Outside of the context directory there may be gigabytes of wheels.
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"
