"""Loads what a user wrote as a complete config, or raises an error that lists all problems."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from det_keras.config.experiment import BUILTIN_LAYER, ExperimentConfig
from det_keras.config.fields.entrypoint import trial_class
from det_keras.config.folding import Folding
from det_keras.config.job import JobConfig
from det_keras.config.kinds import Place
from det_keras.config.legacy import fold_experiment, fold_job, settle_name
from det_keras.config.merge import merge_layers
from det_keras.config.notices import experiment_notices, job_notices
from det_keras.config.overrides import apply_overrides
from det_keras.config.portable import generic_task, move_extensions
from det_keras.config.searching.lengths import Unit
from det_keras.config.searching.methods import refuse_removed_method, settle_searcher
from det_keras.config.searching.searcher import (
    DEFAULT_SEARCHER,
    MOST_OF_A_SEARCH,
    MOST_RUNGS,
    MOST_TRIALS,
    Searcher,
)
from det_keras.config.searching.space import Space
from det_keras.config.secrets import MASK
from det_keras.config.section import Section
from det_keras.config.yaml_text import dump_yaml, ensure_tree, load_yaml, to_plain
from det_keras.errors import ConfigError, ConfigProblem

ConfigT = TypeVar("ConfigT", bound=Section)
#: Returns the config of a template, by its name.
FindTemplate = Callable[[str], Mapping[str, Any]]

_TEMPLATE = "template"


@dataclass(frozen=True)
class LoadedConfig(Generic[ConfigT]):
    """A loaded config.

    Attributes:
        config: the complete, valid config.
        notices: notices for the user: renamed and inferred values, fields without effect, probable
            mistakes.
        original: the YAML text as written; generated if it was a mapping or there are overrides.
        portable: the part of `config` that was given, in the spelling that a Determined master accepts.
    """

    config: ConfigT
    notices: tuple[str, ...]
    original: str
    portable: dict[str, Any]


def load_experiment_config(
    raw: str | Mapping[str, Any],
    *,
    default_storage: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    alone: bool = False,
    layers: Sequence[Mapping[str, Any]] = (),
    find_template: FindTemplate | None = None,
) -> LoadedConfig[ExperimentConfig]:
    """Return the experiment config that `raw` describes.

    Args:
        raw: YAML text, or its content as a mapping.
        default_storage: the default `checkpoint_storage`, used if the config names none; a config that
            gives only `save_*` fields changes these fields of it.
        overrides: changes such as `searcher.max_trials=4`, applied in order.
        alone: whether the script is not run by a master; the config then needs neither entrypoint nor searcher.
        layers: lower layers of the config, highest priority first, such as a template.
        find_template: returns the template that `template` names, the layer below the config; None where there are
            none.

    Raises:
        ConfigError: the config is invalid; the error has all problems.
    """
    given, original = _given(raw, overrides)
    given, layers = _with_template(given, layers, find_template)
    folding = _merged([given, *layers], default_storage)
    _settle(folding, alone=alone)
    values, problems = ExperimentConfig.read(folding.config, Place())
    if not alone:
        problems += _submission_problems(values)
    _raise_if_any([*folding.problems, *problems], given)
    config = ExperimentConfig(**values)
    notices = _once([*folding.notices, *experiment_notices(config, folding.config)])
    # Only what is given: a master merges its own defaults into the rest.
    alone_given = fold_experiment(given)
    _settle(alone_given, alone=alone)
    return LoadedConfig(config, notices, original, config.given_part(alone_given.config))


def portable_changes(changes: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of an experiment's config in the spelling that a Determined master accepts.

    Of a searcher and of a storage it accepts only whole sections.

    Args:
        changes: what is to change, in any spelling.
        current: the complete config.

    Raises:
        ConfigError: an old spelling cannot be converted.
    """
    folding = fold_experiment(changes)
    for name in ("searcher", "checkpoint_storage"):
        if isinstance(folding.config.get(name), dict):
            whole = merge_layers({name: folding.config[name]}, {name: current[name]})[name]
            hidden = [key for key, value in whole.items() if value == MASK]
            for key in hidden:
                folding.refuse(f"{name}.{key}", "is hidden by the master. Give it again with this change.")
            folding.config[name] = {key: value for key, value in whole.items() if value is not None}
    settle_searcher(folding)
    _raise_if_any(folding.problems, changes)
    return move_extensions(folding.config, keep_defaults=True)


def _settle(folding: Folding, *, alone: bool) -> None:
    if folding.config.get("searcher") is None and not alone:
        folding.config["searcher"] = dict(DEFAULT_SEARCHER)
        folding.notices.append(
            "The config has no `searcher`: one trial (`single`) is run with the metric `val_loss`; the script "
            "decides how long it trains."
        )
    settle_name(folding)
    refuse_removed_method(folding)
    settle_searcher(folding)


def load_job_config(
    raw: str | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    layers: Sequence[Mapping[str, Any]] = (),
    find_template: FindTemplate | None = None,
) -> LoadedConfig[JobConfig]:
    """Return the config of a generic job that `raw` describes.

    Args:
        raw: YAML text, or its content as a mapping. Fields of experiments are ignored, with a notice.
        overrides: changes such as `resources.slots=2`, applied in order.
        layers: lower layers of the config, as for an experiment.
        find_template: as for an experiment.

    Raises:
        ConfigError: the config is invalid; the error has all problems.
    """
    given, original = _given(raw, overrides)
    given, layers = _with_template(given, layers, find_template)
    folding = fold_job(given)
    for lower in map(fold_job, layers):
        folding.config = merge_layers(folding.config, lower.config)
        folding.problems += lower.problems
    known, experiment_only = set(JobConfig.names()), set(ExperimentConfig.names())
    for name in [name for name in folding.config if name in experiment_only - known]:
        if folding.config.pop(name) is not None:
            folding.notices.append(f"`{name}` has no effect in a job.")
    values, problems = JobConfig.read(folding.config, Place())
    problems += _missing_entrypoint(values)
    _raise_if_any([*folding.problems, *problems], given)
    config = JobConfig(**values)
    notices = _once([*folding.notices, *job_notices(config)])
    return LoadedConfig(config, notices, original, generic_task(config.to_dict(), folding.config))


def _with_template(
    given: dict[str, Any], layers: Sequence[Mapping[str, Any]], find_template: FindTemplate | None
) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
    """Return a config without the name of its template, and its lower layers with the template."""
    name = given.get(_TEMPLATE)
    rest = {key: value for key, value in given.items() if key != _TEMPLATE}
    if name is None:
        return rest, layers
    if not isinstance(name, str) or not name:
        raise ConfigError([ConfigProblem(_TEMPLATE, f"must be the name of a template, received {name!r}.")])
    if find_template is None:
        raise ConfigError([ConfigProblem(_TEMPLATE, "cannot be used here: a master has templates.")])
    return rest, (find_template(name), *layers)


def _given(raw: str | Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], str]:
    if isinstance(raw, str):
        given = load_yaml(raw)
    else:
        ensure_tree(raw)
        given = to_plain(raw, "", text_keys=False)
    given = apply_overrides(given, overrides) if overrides else given
    as_written = isinstance(raw, str) and not overrides
    return given, raw if as_written else dump_yaml(given)  # type: ignore[return-value]  # text, as just checked


def _merged(layers: Sequence[Mapping[str, Any]], default_storage: Mapping[str, Any] | None) -> Folding:
    folded = [fold_experiment(raw) for raw in layers]
    result = folded[0]
    site = {} if default_storage is None else {"checkpoint_storage": default_storage}
    for lower in (*(layer.config for layer in folded[1:]), site, BUILTIN_LAYER):
        result.config = merge_layers(result.config, lower)
    for layer in folded[1:]:
        result.problems += layer.problems
        result.notices += layer.notices
    return result


def _submission_problems(values: Mapping[str, Any]) -> list[ConfigProblem]:
    problems = _missing_entrypoint(values)
    space, searcher = values.get("hyperparameters"), values.get("searcher")
    if space is None:
        return problems
    if _runs_trial_class(values) and "global_batch_size" not in space.entries:
        problems.append(ConfigProblem("hyperparameters.global_batch_size", "is required for a trial class."))
    if searcher is None:
        return problems
    records = values.get("records_per_epoch") or 0
    return [
        *problems,
        *_space_problems(space, searcher),
        *_size_problems(searcher),
        *_length_problems(space, searcher, records),
    ]


def _missing_entrypoint(values: Mapping[str, Any]) -> list[ConfigProblem]:
    if values.get("entrypoint", "") is not None:
        return []
    return [ConfigProblem("entrypoint", "an entrypoint is required, such as `entrypoint: python3 train.py`.")]


def _runs_trial_class(values: Mapping[str, Any]) -> bool:
    return trial_class(values.get("entrypoint")) is not None


def _space_problems(space: Space, searcher: Searcher) -> Iterator[ConfigProblem]:
    place = Place("hyperparameters")
    if searcher.name != "grid":
        return
    if space.uncounted_names():
        yield place.problem(f"a grid search requires a `count` for {_listed(space.uncounted_names())}.")
    elif space.grid_size() > MOST_TRIALS:
        yield place.problem(f"the grid has {space.grid_size()} points. Use at most {MOST_TRIALS}.")


def _size_problems(searcher: Searcher) -> Iterator[ConfigProblem]:
    place = Place("searcher")
    for name, most in MOST_OF_A_SEARCH.items():
        number = getattr(searcher, name)
        if number is not None and number > most:
            yield place.below(name).problem(f"must be at most {most}, received {number}.")
    if len(searcher.bracket_rungs) > MOST_RUNGS:
        yield place.below("bracket_rungs").problem(
            f"must have at most {MOST_RUNGS} numbers, received {len(searcher.bracket_rungs)}."
        )


def _length_problems(space: Space, searcher: Searcher, records_per_epoch: int) -> Iterator[ConfigProblem]:
    length = searcher.max_length
    if length is None or "global_batch_size" in space.entries:
        return
    needs_batch_size = length.unit is Unit.RECORDS or (length.unit is Unit.EPOCHS and records_per_epoch > 0)
    if needs_batch_size:
        yield Place("searcher.max_length").problem(
            f"is {length}, which cannot be converted to batches without the hyperparameter `global_batch_size`. Add "
            "it, or give the length in batches."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _raise_if_any(problems: Sequence[ConfigProblem], given: Mapping[str, Any]) -> None:
    if problems:
        order = {str(name): index for index, name in enumerate(given)}
        unique = dict.fromkeys(problems)
        raise ConfigError(sorted(unique, key=lambda problem: order.get(_field(problem), len(order))))


def _field(problem: ConfigProblem) -> str:
    return re.split(r"[.\[]", problem.path)[0]


def _once(notices: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(notices))
