"""A config file on its way to a master: read and checked here, so that a wrong one needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.config import ExperimentConfig, JobConfig

__all__ = ["ExperimentFile", "JobFile", "read_changes", "read_experiment", "read_job"]


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment's config.

    Attributes:
        text: the YAML, as written unless something was changed on the command line.
        config: what it means, with all defaults.
        notices: what to tell the user about it.
    """

    text: str
    config: ExperimentConfig
    notices: tuple[str, ...]


@dataclass(frozen=True)
class JobFile:
    """A generic job's config.

    Attributes:
        raw: what is sent.
        config: what it means, with all defaults.
    """

    raw: dict[str, Any]
    config: JobConfig


def read_experiment(path: str, overrides: Sequence[str]) -> ExperimentFile:
    """Return the experiment config in a file, changed by `overrides`.

    Raises:
        ConfigError: with everything that is wrong in it.
        DetError: the file cannot be read.
    """
    # Imported here: reading YAML is for the commands that have a config.
    from det_keras.config import load_experiment_config, load_yaml

    text = _read(path)
    # Once more than needed, so that a syntax error names the file.
    load_yaml(text, source=path)
    loaded = load_experiment_config(text, overrides=overrides)
    return ExperimentFile(loaded.original, loaded.config, loaded.notices)


def read_changes(path: str | None, overrides: Sequence[str]) -> str:
    """Return as YAML what is to change in a config: what a file says, if there is one, changed by `overrides`.

    Raises:
        ConfigError: the file is no YAML, or an override cannot be read.
        DetError: the file cannot be read.
    """
    from det_keras.config import apply_overrides, dump_yaml, load_yaml

    given = {} if path is None else load_yaml(_read(path), source=path, may_be_empty=True)
    changes = apply_overrides(given, overrides)
    return dump_yaml(changes) if changes else ""


def read_job(path: str, overrides: Sequence[str]) -> JobFile:
    """Return the job config in a file, changed by `overrides`.

    Raises:
        ConfigError: with everything that is wrong in it.
        DetError: the file cannot be read.
    """
    from det_keras.config import load_job_config, load_yaml

    text = _read(path)
    load_yaml(text, source=path)
    loaded = load_job_config(text, overrides=overrides)
    return JobFile(load_yaml(loaded.original), loaded.config)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DetError(f"The config file {path!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DetError(f"The config file {path!r} is not UTF-8 text: {error.reason}.") from error
