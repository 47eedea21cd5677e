"""What a Determined master receives in place of the files as written: its own spelling, and commands that run there.

In its containers, `determined` is Determined's own package, whose `determined.keras` cannot be imported with a current
Keras. The launchers of this product put the package that forwards to det_keras before it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

from det_keras.cli.submission.config_file import ExperimentFile, JobFile
from det_keras.errors import DetError

#: Why the packages that a config asks for have no effect there.
PACKAGES = (
    "on a Determined cluster: a container has the packages of its image. Install them in `environment.image`, or by a "
    "startup-hook.sh"
)

_RUN_TRIAL_CLASS = "python3 -m det_keras.launch.tensorflow -- python3 -m det_keras.keras.generations.trial"
_LAUNCHER = re.compile(r"\bdetermined\.launch\.(horovod|tensorflow)\b")
_OWN_LAUNCHER = re.compile(r"\bdet_keras\.launch\.")
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+determined\b", re.MULTILINE)
# Linux starts no process with a longer variable.
_LONGEST_VARIABLE = 128 * 1024


def experiment_text(file: ExperimentFile) -> tuple[str, list[str]]:
    """Return the config to submit to a Determined master, as YAML, and notices about commands that were replaced.

    Raises:
        DetError: the master has no such search method.
    """
    # Imported here: only commands with a config need YAML.
    from det_keras.config import dump_yaml

    check_method(file)
    config, notices = _without_verification(file.portable), []
    trial_class = file.config.trial_class
    if trial_class is not None:
        config["entrypoint"] = f"{_RUN_TRIAL_CLASS} {trial_class}"
    else:
        config["entrypoint"] = _with_own_launcher(config["entrypoint"])
    if config["entrypoint"] != file.portable["entrypoint"]:
        notices.append(
            f"`entrypoint` is submitted as {_shown(config['entrypoint'])}: a Determined master starts "
            f"{_shown(file.portable['entrypoint'])} with its own package, which cannot train with Keras 3."
        )
    return dump_yaml(config), notices


def _without_verification(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without `reproducibility.verify_resume`: that master starts no copy of a trial."""
    from det_keras.config import VERIFY_RESUME_VARIABLE

    environment = dict(config.get("environment") or {})
    given = environment.get("environment_variables")
    if isinstance(given, list):
        environment["environment_variables"] = [
            entry for entry in given if entry.partition("=")[0] != VERIFY_RESUME_VARIABLE
        ]
    elif isinstance(given, Mapping):
        environment["environment_variables"] = {
            device: [entry for entry in entries if entry.partition("=")[0] != VERIFY_RESUME_VARIABLE]
            for device, entries in given.items()
        }
    return {**config, "environment": environment} if environment else dict(config)


def check_method(file: ExperimentFile) -> None:
    """Check that a Determined master has the search method.

    Raises:
        DetError: it has not.
    """
    if file.config.searcher.name == "tpe":
        raise DetError(
            "The searcher `tpe` needs the master of det_keras: a Determined master has no such method. Use "
            "`adaptive_asha` or `random` there, or leave out `-m` and DET_MASTER to search on this machine."
        )


def job_text(file: JobFile) -> str:
    """Return the config of a generic task of a Determined master that runs a job, as YAML.

    Raises:
        DetError: the config is too large for an environment variable, in which it travels there.
    """
    from det_keras.config import dump_yaml

    given = file.portable["environment"]["environment_variables"]
    lists = [given] if isinstance(given, list) else given.values()
    longest = max(len(entry) for entries in lists for entry in entries)
    if longest >= _LONGEST_VARIABLE:
        raise DetError(
            f"The job's config has {longest} characters. A Determined master passes it in a variable of at most "
            f"{_LONGEST_VARIABLE}: put large `data` into a file of the context directory."
        )
    return dump_yaml(file.portable)


def import_notices(text: str, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a notice for each script that would import Determined's own package in a container.

    Args:
        text: the config to submit.
        entries: the files of the context directory, as sent.
    """
    if _OWN_LAUNCHER.search(text):
        return []
    importing = [entry["path"] for entry in entries if entry["path"].endswith(".py") and _imports(entry)]
    return [
        f"{path} imports `determined`, which is Determined's own package in a container of the cluster; its "
        "`determined.keras` cannot be imported with Keras 3. Write `import det_keras as det`, or prefix the entrypoint "
        "with `python3 -m det_keras.launch.tensorflow --`."
        for path in importing
    ]


def _imports(entry: Mapping[str, Any]) -> bool:
    content = base64.b64decode(entry["content"]).decode(errors="replace")
    return _IMPORT.search(content) is not None


def _with_own_launcher(entrypoint: Any) -> Any:
    if isinstance(entrypoint, str):
        return _LAUNCHER.sub(r"det_keras.launch.\1", entrypoint)
    return [_LAUNCHER.sub(r"det_keras.launch.\1", argument) for argument in entrypoint]


def _shown(entrypoint: Any) -> str:
    return f"`{entrypoint if isinstance(entrypoint, str) else ' '.join(entrypoint)}`"
