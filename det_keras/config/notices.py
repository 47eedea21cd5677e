"""Notices about a valid config: fields without effect, and probable mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from det_keras.config.experiment import ExperimentConfig
from det_keras.config.fields.resources import BindMount
from det_keras.config.job import JobConfig
from det_keras.config.kinds import Place
from det_keras.config.searching.hyperparameters import LogRange

_LARGE_GRID = 2000
# With base 10 the values would begin between 1 and 1.26.
_SMALL_EXPONENT = 0.1
# Parts of the names of metrics for which larger is better.
_LARGER_IS_BETTER = ("acc", "auc", "f1", "precision", "recall", "iou")


def experiment_notices(config: ExperimentConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notices about `config`.

    Args:
        config: the valid config.
        given: the same in the current spelling, without defaults.
    """
    yield from _task_notices(config)
    searcher = given.get("searcher")
    if isinstance(searcher, Mapping) and searcher.get("smaller_is_better") is None:
        yield from _direction_notices(config.searcher.metric)
    varied = config.hyperparameters.variable_names()
    if isinstance(searcher, Mapping) and config.searcher.name == "single" and varied:
        names = ", ".join(f"`{name}`" for name in varied)
        yield f"The searcher `single` runs one trial, with one sample of {names}. To try several, use `random`."
    yield from _exponent_notices(config)
    size = config.hyperparameters.grid_size()
    if config.searcher.name == "grid" and size > _LARGE_GRID:
        yield f"The grid of `hyperparameters` has {size} points; each will be a trial."
    for policy in config.log_policies:
        if policy.pattern is None and policy.action is not None:
            yield f"`log_policies` item {policy.name!r} has no `pattern`, so its action is never taken."


def job_notices(config: JobConfig) -> Iterator[str]:
    """Yield the notices about `config`."""
    return _task_notices(config)


def _task_notices(config: ExperimentConfig | JobConfig) -> Iterator[str]:
    for path in config.inert_paths(Place()):
        yield f"`{path}` has no effect here."
    for problem in config.environment.notices(Place("environment")):
        yield f"`{problem.path}`: {problem.message}"
    yield from _mount_notices(config.bind_mounts)


def _direction_notices(metric: str) -> Iterator[str]:
    if any(part in metric.lower() for part in _LARGER_IS_BETTER):
        yield (
            f"The searcher considers the lowest `{metric}` the best, since `searcher.smaller_is_better` is true by "
            "default. If larger is better, set it to false."
        )


def _exponent_notices(config: ExperimentConfig) -> Iterator[str]:
    for name, leaf in config.hyperparameters.leaves():
        if isinstance(leaf, LogRange) and leaf.base > 1 and 0 < leaf.minval < _SMALL_EXPONENT:
            values = f"{leaf.base**leaf.minval:.6g} to {leaf.base**leaf.maxval:.6g}"
            meant = math.log(leaf.minval, leaf.base)
            yield (
                f"`hyperparameters.{name}` has values from {values}: `minval` and `maxval` of `log` are exponents. If "
                f"{leaf.minval:g} is meant as the smallest value, write `minval: {meant:.6g}`."
            )


def _mount_notices(mounts: tuple[BindMount, ...]) -> Iterator[str]:
    if not mounts:
        return
    yield "`bind_mounts` has no effect here: tasks run in this machine's own file system."
    for mount in mounts:
        host, container = str(mount.host_path), str(mount.container_path)
        if host != container and Path(host).exists():
            yield f"`bind_mounts`: the script will not see {container}. It finds the same files at {host}."
