"""The spelling of a config that a Determined 0.38.1 master accepts.

It refuses all keys that it does not know. The fields of an experiment that only this product has therefore travel
as environment variables of the task, and so does everything about a job that has no field there.

The packages of a task (`environment.pip` and its neighbours) travel as well, so that a complete config can be read
back. They have no effect there: a container has the packages of its image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from det_keras.config.folding import Folding, section_of
from det_keras.config.yaml_text import parse_scalar

#: The variable with the config of a job, as JSON.
TASK_CONFIG_VARIABLE = "DET_TASK_CONFIG"

#: The variable with `reproducibility.verify_resume`, which only our own master reads.
VERIFY_RESUME_VARIABLE = "DET_KERAS_VERIFY_RESUME"

#: Variable -> section, field, default.
_EXTENSIONS: Mapping[str, tuple[str, str, Any]] = {
    "DET_KERAS_DETERMINISTIC_OPS": ("reproducibility", "deterministic_ops", False),
    "DET_KERAS_DIVERGENCE_CHECK_PERIOD": ("optimizations", "divergence_check_period", 100),
    VERIFY_RESUME_VARIABLE: ("reproducibility", "verify_resume", None),
    "DET_KERAS_PROFILING_LAYERS": ("profiling", "layers", False),
    "DET_KERAS_VIRTUAL_WORKERS": ("reproducibility", "virtual_workers", 1),
    "DET_KERAS_ENGINE": ("optimizations", "collective_engine", "auto"),
    "DET_KERAS_ENVIRONMENT_PYTHON": ("environment", "python", None),
    "DET_KERAS_ENVIRONMENT_PIP": ("environment", "pip", []),
    "DET_KERAS_ENVIRONMENT_REQUIREMENTS": ("environment", "requirements", None),
}
# Their keys are names that the user chose.
_WHOLE = frozenset({"data", "environment_variables", "hyperparameters"})
_GENERIC_TASK_FIELDS = ("bind_mounts", "debug", "environment", "resources")


def given_part(complete: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a complete config that are given, with the values of the complete config.

    Args:
        complete: with all defaults.
        given: in the current spelling, without defaults.
    """
    part = {}
    for name, value in complete.items():
        below = given.get(name)
        if below is None:
            continue
        is_section = isinstance(value, Mapping) and isinstance(below, Mapping) and name not in _WHOLE
        part[name] = given_part(value, below) if is_section else value
    return part


def move_extensions(config: dict[str, Any], *, keep_defaults: bool = False) -> dict[str, Any]:
    """Return `config` with the fields that only this product has as environment variables.

    Args:
        config: in the current spelling.
        keep_defaults: whether a field with its default becomes a variable, which overrides an earlier one.
    """
    entries = []
    result = dict(config)
    for variable, (section, field, default) in _EXTENSIONS.items():
        if field not in (result.get(section) or {}):
            continue
        rest = dict(result[section])
        value = rest.pop(field)
        result[section] = rest
        if value is not None and (keep_defaults or value != default):
            entries.append(f"{variable}={json.dumps(value)}")
    return _with_variables(result, entries)


def fold_extensions(folding: Folding) -> None:
    """Convert the environment variables of `move_extensions` back to fields, unless the field is given as well."""
    environment = section_of(folding.config, "environment")
    given = environment.get("environment_variables")
    lists = list(given.values()) if isinstance(given, dict) else [given]
    values = {}
    for entries in (entries for entries in lists if isinstance(entries, list)):
        for entry in list(entries):
            name, equals, text = entry.partition("=") if isinstance(entry, str) else ("", "", "")
            if name in _EXTENSIONS and equals:
                entries.remove(entry)
                # Of two entries the later counts, as for all variables.
                values[name] = text
    for name, text in values.items():
        section, field, default = _EXTENSIONS[name]
        target = folding.config.setdefault(section, {})
        if isinstance(target, dict) and target.get(field) is None:
            target[field] = _list_of(text) if isinstance(default, list) else parse_scalar(text)


def _list_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # The validation reports it, by the name of the field.
        return text


def generic_task(complete: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a generic task that runs a job.

    Args:
        complete: the config of the job with all defaults. The script reads it from the variable `DET_TASK_CONFIG`.
        given: the same in the current spelling, without defaults.
    """
    known = given_part(complete, given)
    if "environment" in known:
        ours = {field for section, field, _ in _EXTENSIONS.values() if section == "environment"}
        known["environment"] = {
            name: value for name, value in known["environment"].items() if name not in ours
        }
    task = {name: known[name] for name in _GENERIC_TASK_FIELDS if name in known}
    entrypoint = complete["entrypoint"]
    # Its entrypoint is a list of arguments, and no shell reads it.
    task["entrypoint"] = ["sh", "-c", entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
    # The variables of the environment are there anyway.
    for_script = {name: value for name, value in complete.items() if name != "environment"}
    return _with_variables(task, [f"{TASK_CONFIG_VARIABLE}={json.dumps(for_script)}"])


def _with_variables(config: dict[str, Any], entries: list[str]) -> dict[str, Any]:
    if not entries:
        return config
    environment = dict(config.get("environment") or {})
    given = environment.get("environment_variables") or []
    if isinstance(given, Mapping):
        environment["environment_variables"] = {name: [*listed, *entries] for name, listed in given.items()}
    else:
        environment["environment_variables"] = [*given, *entries]
    return {**config, "environment": environment}
