"""Facts about a Python interpreter, which it is asked for itself: it may be another version, or have other packages."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.launch.environments.request import BuildError

_TIMEOUT_S = 60.0
# Run by any Python 3, so it uses nothing new. Only names of directories are read here: this runs at every start of a
# task with an environment, and reading the metadata of some hundred packages takes ten times as long.
_FACTS = r"""
import importlib.util, json, os, site, sys, sysconfig
folders = list(site.getsitepackages())
if site.ENABLE_USER_SITE:
    folders.append(site.getusersitepackages())
names = []
for entry in sys.path[1:]:
    if os.path.isdir(entry):
        names += sorted(n for n in os.listdir(entry) if n.endswith((".dist-info", ".egg-info", ".egg-link", ".pth")))
wheel = ""
bundle = importlib.util.find_spec("ensurepip")
if bundle is not None and importlib.util.find_spec("pip") is None:
    places = [os.path.join(os.path.dirname(bundle.origin), "_bundled")]
    places += [sysconfig.get_config_var("WHEEL_PKG_DIR") or ""]
    for place in places:
        for name in os.listdir(place) if os.path.isdir(place) else []:
            wheel = os.path.join(place, name) if name.startswith("pip-") and name.endswith(".whl") else wheel
scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
library = sysconfig.get_path("purelib", scheme, {"base": "/", "platbase": "/"}).lstrip("/")
print(json.dumps({
    "path": sys.executable,
    "base": getattr(sys, "_base_executable", sys.executable),
    "version": list(sys.version_info[:3]),
    "build": sys.version,
    "site_folders": [f for f in folders if os.path.isdir(f)],
    "library": library,
    "platform_library": getattr(sys, "platlibdir", "lib"),
    "pip_wheel": wheel,
    "packages": names,
}))
"""
_PACKAGES = r"""
import importlib.metadata, json
found = {}
for item in importlib.metadata.distributions():
    name = item.metadata["Name"]
    if name and item.version:
        extras = item.metadata.get_all("Provides-Extra") or []
        found.setdefault(name, [item.version, list(item.requires or []), extras])
print(json.dumps(found))
"""
_MISSING = (
    "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter.

    Attributes:
        path: its path, without shims.
        base: the interpreter from which its virtual environment was made; `path` outside of one.
        version: the three numbers of its version.
        site_folders: the directories with its packages.
        library: where a virtual environment of it has its packages, relative to the environment.
        platform_library: ``lib``, or ``lib64`` on some systems.
        pip_wheel: the pip that comes with Python, if the interpreter has no other; empty if it has.
        identity: text that changes with the interpreter and with the names and versions of its packages.
    """

    path: str
    base: str
    version: tuple[int, ...]
    site_folders: tuple[str, ...]
    library: str
    platform_library: str
    pip_wheel: str
    identity: str

    @classmethod
    def ask(cls, path: str, variables: Mapping[str, str]) -> Interpreter:
        """Return the facts about the interpreter at `path`.

        Args:
            path: path of the program.
            variables: the task's environment variables.

        Raises:
            BuildError: it does not exist, or is not a Python 3 interpreter.
        """
        facts = _ask(path, variables, _FACTS)
        return cls(
            path=facts["path"],
            base=facts["base"],
            version=tuple(facts["version"]),
            site_folders=tuple(dict.fromkeys(facts["site_folders"])),
            library=facts["library"],
            platform_library=facts["platform_library"],
            pip_wheel=facts["pip_wheel"],
            identity=json.dumps([facts["path"], facts["base"], facts["build"], facts["packages"]]),
        )

    def __str__(self) -> str:
        return f"{self.path} (Python {'.'.join(map(str, self.version))})"


def task_interpreter(named: str | None, variables: Mapping[str, str]) -> Interpreter:
    """Return the interpreter of a task.

    Args:
        named: the path in the config; None for the first `python3` on the PATH, which is what the entrypoint would
            start. Without one there, it is the Python of this process.
        variables: the task's environment variables.

    Raises:
        BuildError: the interpreter in the config cannot be used.
    """
    if named is not None:
        return Interpreter.ask(str(Path(named).expanduser()), variables)
    found = shutil.which("python3", path=variables.get("PATH"))
    if found is not None:
        try:
            return Interpreter.ask(found, variables)
        except BuildError:
            # Something else of that name, or a broken installation. The task does not need it, perhaps.
            pass
    return Interpreter.ask(sys.executable, variables)


def installed_packages(
    interpreter: Interpreter, variables: Mapping[str, str]
) -> dict[str, tuple[str, Sequence[str], Sequence[str]]]:
    """Return the interpreter's packages: name -> version, requirements, extras.

    Raises:
        BuildError: it cannot be asked.
    """
    found = _ask(interpreter.path, variables, _PACKAGES)
    return {name: (version, requires, extras) for name, (version, requires, extras) in found.items()}


def missing_modules(path: Path, names: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return those modules in `names` that the interpreter at `path` does not find.

    Args:
        path: of the interpreter.
        names: of the modules.
        variables: the task's environment variables, with its PYTHONPATH.
    """
    try:
        done = _run(str(path), _MISSING, names, variables)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()


def _ask(path: str, variables: Mapping[str, str], script: str) -> Any:
    # What PYTHONPATH adds belongs to the task and not to the interpreter.
    environment = {
        name: value for name, value in variables.items() if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    try:
        done = _run(path, script, (), environment)
    except (OSError, ValueError) as error:
        raise BuildError(_unusable(path, getattr(error, "strerror", None) or str(error))) from error
    except subprocess.TimeoutExpired:
        raise BuildError(_unusable(path, f"it does not answer within {_TIMEOUT_S:g} s")) from None
    try:
        # A .pth file of the interpreter may print lines of its own before.
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise BuildError(_unusable(path, f"it is not a working Python 3 interpreter ({last})")) from None


def _run(
    path: str, script: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [path, "-c", script, *arguments],
        env=dict(environment),
        # Not the context directory, whose modules would be found first.
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )


def _unusable(path: str, reason: str) -> str:
    inside = Path(path, "bin", "python")
    hint = f" Did you mean {str(inside)!r}?" if inside.exists() else ""
    return (
        f"The interpreter {path!r} cannot be used on {socket.gethostname()}: {reason}.{hint} "
        "`environment.python` is the path of a Python interpreter on the machine that runs the task."
    )
