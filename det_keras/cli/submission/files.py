"""Functions shared by the submission of experiments and jobs."""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli.render import printable
from det_keras.cli.submission.context_directory import ContextFiles, bundle
from det_keras.display import size_text
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.config import Environment
import os

from det_keras.provenance.capture import Capture, is_enabled


def read_files(directory: str) -> ContextFiles:
    """Read a context directory, and print its size."""
    root = Path(directory).resolve()
    found = bundle(root)
    files = "1 file" if found.file_count == 1 else f"{found.file_count} files"
    print(f"Preparing files ({root}) to send to master... {size_text(found.size_bytes)} and {files}")
    sys.stdout.flush()
    for name in found.skipped:
        print(f"Not sent: {printable(name)} is neither a file nor a directory.", file=sys.stderr)
    return found


def print_notices(answer: Mapping[str, Any]) -> None:
    """Print the master's notices about a config."""
    for notice in answer.get("notices") or ():
        print(printable(str(notice)), file=sys.stderr)


# Shorter secrets are found in files in which they are not meant.
_SHORTEST_SECRET = 6


def conceal_secrets(files: ContextFiles, config: Mapping[str, Any]) -> ContextFiles:
    """Mask the secrets of the configs among the files, and print which other files have secrets of `config`.

    Args:
        files: of the context directory.
        config: the submitted config, as given.
    """
    # Imported here: only commands with a config need YAML.
    from det_keras.config.copies import conceal
    from det_keras.config.secrets import secret_values

    secrets = secret_values(config)
    sought = [secret.encode() for secret in secrets if len(secret) >= _SHORTEST_SECRET]
    entries, found = [], []
    for entry in files.entries:
        content = base64.b64decode(entry["content"])
        concealed = conceal(content, secrets)
        is_changed = concealed != content
        entries.append({**entry, "content": base64.b64encode(concealed).decode()} if is_changed else entry)
        if any(secret in concealed for secret in sought):
            found.append(printable(entry["path"]))
    if found:
        print(
            f"Secrets of the config are also in these files, which are sent as they are: {', '.join(found)}. "
            "Whoever may read the code or a checkpoint finds them there. Let the script take them from its environment "
            "or its config.",
            file=sys.stderr,
        )
    return dataclasses.replace(files, entries=tuple(entries))


_FIELDS = ("python", "pip", "requirements")


def check_requirements(environment: Environment, entries: Iterable[Mapping[str, Any]]) -> None:
    """Check that the requirements file is among the files that are sent.

    Args:
        environment: of the config.
        entries: the files of the context directory, as sent.

    Raises:
        DetError: it is not.
    """
    name = environment.requirements
    if name is not None and name not in {entry["path"] for entry in entries}:
        raise DetError(
            f"`environment.requirements` is {name!r}, which is not among the files of the context directory. Add the "
            "file, or remove it from .detignore."
        )


def notice_without_effect(environment: Environment, where: str) -> list[str]:
    """Return a notice if a config asks for packages, which have no effect.

    Args:
        environment: of the config.
        where: where they have none, and what to do.
    """
    given = [f"`environment.{name}`" for name in _FIELDS if getattr(environment, name)]
    if not given:
        return []
    verb = "has" if len(given) == 1 else "have"
    return [f"{', '.join(given)} {verb} no effect {where}."]


#: How long a submission waits for its record, which usually is complete before.
PATIENCE_S = 1.0


def capture_submission(context_directory: str | None) -> Capture:
    """Start to capture the record of a submission, and return at once.

    Args:
        context_directory: the submitted directory, whose repository is read; None for the working directory.
    """
    directory = Path(context_directory or ".").absolute()
    return Capture(lambda: _record(directory) if is_enabled(os.environ) else {})


def _record(directory: Path) -> dict[str, Any]:
    # Imported here, on the thread of the capture.
    from det_keras.provenance.process import describe_process
    from det_keras.provenance.repository import read_repository

    try:
        repository = read_repository(directory, os.environ)
    except OSError:
        # Git is not installed.
        repository = None
    process = describe_process(["det", *sys.argv[1:]], Path.cwd())
    return {**process, **({} if repository is None else {"repository": repository})}
