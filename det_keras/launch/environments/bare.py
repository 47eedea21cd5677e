"""Virtual environments without packages of their own, on top of an interpreter or of another environment.

Written directly, in a millisecond: `venv` starts an interpreter and installs pip. An environment that is made from the
interpreter of a virtual environment does not see the packages there, not even with ``--system-site-packages``: that
means the packages of the Python below both. A .pth file adds them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from det_keras.launch.environments.interpreter import Interpreter

# Sorted last: the paths of the environment's own .pth files, such as those of editable packages, come before.
_LINK_FILE = "zzzz_det_keras.pth"


def packages_folder(environment: Path, interpreter: Interpreter) -> Path:
    """Return the directory with the packages of an environment."""
    return environment / interpreter.library


def make_environment(environment: Path, interpreter: Interpreter) -> None:
    """Make an empty virtual environment, which sees no packages yet.

    Args:
        environment: its directory, which must not exist.
        interpreter: the interpreter; its base runs the environment.

    Raises:
        OSError: it cannot be written.
    """
    programs = environment / "bin"
    programs.mkdir(parents=True)
    packages_folder(environment, interpreter).mkdir(parents=True)
    if interpreter.platform_library != "lib":
        (environment / interpreter.platform_library).symlink_to("lib")
    version = ".".join(map(str, interpreter.version))
    (environment / "pyvenv.cfg").write_text(
        f"home = {Path(interpreter.base).parent}\ninclude-system-site-packages = false\nversion = {version}\n",
        encoding="utf-8",
    )
    (programs / "python").symlink_to(interpreter.base)
    minor = f"{interpreter.version[0]}.{interpreter.version[1]}"
    for name in ("python3", f"python{minor}"):
        (programs / name).symlink_to("python")
    # The interpreter's own pip, run by the environment's Python, installs into the environment.
    command = f'#!/bin/sh\nexec {shlex.quote(str(programs / "python"))} -m pip "$@"\n'
    for name in ("pip", "pip3", f"pip{minor}"):
        (programs / name).write_text(command, encoding="utf-8")
        (programs / name).chmod(0o755)


def link_packages(
    environment: Path,
    interpreter: Interpreter,
    folders: Sequence[str],
    paths: Sequence[str] = (),
) -> None:
    """Let an environment find packages elsewhere, after its own.

    Args:
        environment: the directory of the environment.
        interpreter: its interpreter.
        folders: directories with packages, whose own .pth files count too.
        paths: directories and archives to add to `sys.path` after them.

    Raises:
        OSError: it cannot be written.
    """
    lines = [f"import site; site.addsitedir({folder!a})" for folder in folders]
    # `site` reads the file more than once at the start of a virtual environment.
    lines += [f"import sys; {path!a} in sys.path or sys.path.append({path!a})" for path in paths if path]
    file = packages_folder(environment, interpreter) / _LINK_FILE
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
