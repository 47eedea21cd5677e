"""Converts old spellings of a config to the current ones; this is done in this module only.

`fold_experiment` and `fold_job` rename within one layer of a config. After the layers are merged, `settle_name` takes a
name from the description, and `settle_searcher` in `methods` converts old search methods and lengths. Values of a wrong
type are not changed; the validation reports them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.config.fields.entrypoint import as_command
from det_keras.config.folding import Folding, as_int, section_of
from det_keras.config.kinds import shown
from det_keras.config.portable import fold_extensions

_DEFAULT_STEP = 100
_STEP_LENGTHS = {"max_steps": "max_length", "target_trial_steps": "max_length", "step_budget": "budget"}
_STEP_FIELDS = (*_STEP_LENGTHS, "steps_per_round")
_PERIODS = ("min_validation_period", "min_checkpoint_period")


def fold_experiment(raw: Mapping[str, Any]) -> Folding:
    """Return one layer of an experiment config in the current spelling."""
    folding = Folding(copy.deepcopy(dict(raw)))
    _fold_labels(folding)
    _fold_entrypoint(folding)
    _fold_steps(folding)
    _fold_slots(folding, "slots", "slots_per_trial")
    _fold_environment(folding)
    _fold_log_actions(folding)
    fold_extensions(folding)
    return folding


def fold_job(raw: Mapping[str, Any]) -> Folding:
    """Return a job config in the current spelling."""
    folding = Folding(copy.deepcopy(dict(raw)))
    settle_name(folding)
    _fold_entrypoint(folding)
    _fold_slots(folding, "slots_per_trial", "slots")
    _fold_environment(folding)
    return folding


def settle_name(folding: Folding) -> None:
    """Name a config after its description if no layer has a name."""
    config = folding.config
    description = config.get("description")
    if config.get("name") is None and isinstance(description, str) and description.strip():
        config["name"] = description.strip().splitlines()[0].rstrip()


def _fold_labels(folding: Folding) -> None:
    # In configs with steps, labels were the keys of a mapping.
    labels = folding.config.get("labels")
    if isinstance(labels, dict):
        folding.config["labels"] = list(labels)


def _fold_entrypoint(folding: Folding) -> None:
    config = folding.config
    script, entrypoint = config.pop("entrypoint_script", None), config.get("entrypoint")
    if script is None:
        return
    if entrypoint in (None, script):
        config["entrypoint"] = as_command(script)
    else:
        folding.refuse(
            "entrypoint_script",
            f"{shown(script)} and `entrypoint` {shown(entrypoint)} are both given. Keep one of them.",
        )


def _fold_slots(folding: Folding, alias: str, name: str) -> None:
    resources = section_of(folding.config, "resources")
    given = resources.pop(alias, None)
    if given is None:
        return
    if resources.get(name) is None:
        resources[name] = given
        folding.notices.append(f"`resources.{alias}` is read as `resources.{name}`: {shown(given)}.")
    elif resources[name] != given:
        folding.refuse(
            f"resources.{alias}",
            f"is {shown(given)}, but `resources.{name}` is {shown(resources[name])}. Keep only `{name}`.",
        )


def _fold_environment(folding: Folding) -> None:
    environment = section_of(folding.config, "environment")
    for field in ("environment_variables", "image"):
        _rename(folding, section_of(environment, field), "gpu", "cuda", f"environment.{field}")
    _rename(
        folding,
        section_of(environment, "registry_auth"),
        "server",
        "serveraddress",
        "environment.registry_auth",
    )


def _rename(folding: Folding, section: dict[str, Any], old: str, new: str, path: str) -> None:
    given = section.pop(old, None)
    if given is None:
        return
    if section.get(new) is not None:
        folding.refuse(f"{path}.{old}", f"is the old name of `{new}`, which is given as well. Keep `{new}`.")
        return
    section[new] = given
    folding.notices.append(f"`{path}.{old}` is the old name of `{path}.{new}` and is read as that.")


def _fold_log_actions(folding: Folding) -> None:
    policies = folding.config.get("log_policies")
    for policy in policies if isinstance(policies, list) else ():
        action = policy.get("action") if isinstance(policy, dict) else None
        if isinstance(action, dict) and set(action) == {"type"}:
            policy["action"] = action["type"]


def _fold_steps(folding: Folding) -> None:
    config, searcher = folding.config, section_of(folding.config, "searcher")
    _drop_nulls(config, ("batches_per_step",))
    _drop_nulls(searcher, _STEP_FIELDS)
    signs = ["batches_per_step"] if "batches_per_step" in config else []
    signs += [f"searcher.{name}" for name in _STEP_FIELDS if name in searcher]
    if not signs:
        return
    _refuse_mixing(folding, searcher, signs[0])
    size = _step_size(folding)
    if "max_steps" in searcher and searcher.pop("target_trial_steps", None) is not None:
        folding.refuse("searcher.target_trial_steps", "is another name for `max_steps`. Keep one of them.")
    for old, new in _STEP_LENGTHS.items():
        _fold_step_length(folding, searcher, old, new, size)
    for name in _PERIODS:
        _fold_step_period(folding, name, size)


def _drop_nulls(section: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if section.get(name, "") is None:
            del section[name]


def _refuse_mixing(folding: Folding, searcher: Mapping[str, Any], sign: str) -> None:
    modern = ["scheduling_unit"] if folding.config.get("scheduling_unit") is not None else []
    names = ("max_length", "max_time", "time_metric", "budget")
    modern += [f"searcher.{name}" for name in names if searcher.get(name) is not None]
    for path in modern:
        folding.refuse(
            path, f"cannot be combined with `{sign}`, which counts steps. Give all lengths in the same way."
        )


def _step_size(folding: Folding) -> int:
    given = folding.config.pop("batches_per_step", None)
    if given is None:
        return _DEFAULT_STEP
    size = as_int(given)
    if size is None or size < 1:
        folding.refuse("batches_per_step", f"must be a whole number, at least 1, received {shown(given)}.")
        return _DEFAULT_STEP
    if folding.config.get("scheduling_unit") is None:
        folding.config["scheduling_unit"] = size
        folding.notices.append(f"`batches_per_step: {size}` is read as `scheduling_unit: {size}`.")
    return size


def _fold_step_length(folding: Folding, searcher: dict[str, Any], old: str, new: str, size: int) -> None:
    given = searcher.pop(old, None)
    if given is None:
        return
    steps = as_int(given)
    if steps is None or steps < 1:
        folding.refuse(
            f"searcher.{old}", f"must be a whole number of steps, at least 1, received {shown(given)}."
        )
        # A valid placeholder, so that a missing length is not reported as well.
        searcher.setdefault(new, {"batches": size})
    elif searcher.get(new) is None:
        searcher[new] = {"batches": steps * size}
        folding.notices.append(
            f"`searcher.{old}: {steps}` is read as `searcher.{new}: {{batches: {steps * size}}}`, "
            f"with {size} batches in a step."
        )


def _fold_step_period(folding: Folding, name: str, size: int) -> None:
    given = folding.config.get(name)
    steps = as_int(given)
    if steps is None:
        return
    if steps < 1:
        folding.refuse(name, f"must be at least 1 step, received {steps}. Leave it out for never.")
        del folding.config[name]
        return
    folding.config[name] = {"batches": steps * size}
    folding.notices.append(
        f"`{name}: {steps}` is read as `{name}: {{batches: {steps * size}}}`, with {size} batches in a step."
    )
