"""Config files: read and checked before a master is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.config import ExperimentConfig, FindTemplate, JobConfig


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment's config.

    Attributes:
        text: the YAML, as written unless the command line changes it.
        given: its content.
        config: the parsed config, with all defaults.
        notices: notices for the user.
        portable: the config without defaults, in the spelling that a Determined master accepts.
    """

    text: str
    given: dict[str, Any]
    config: ExperimentConfig
    notices: tuple[str, ...]
    portable: dict[str, Any]


@dataclass(frozen=True)
class JobFile:
    """A generic job's config.

    Attributes:
        raw: the config to send.
        config: the parsed config, with all defaults.
        portable: the config of a generic task of a Determined master.
    """

    raw: dict[str, Any]
    config: JobConfig
    portable: dict[str, Any]


def read_experiment(
    path: str, overrides: Sequence[str], find_template: FindTemplate | None = None
) -> ExperimentFile:
    """Return the experiment config in a file, changed by `overrides`.

    Args:
        path: of the file.
        overrides: such as `searcher.max_trials=4`.
        find_template: returns the template that the config names; None refuses templates.

    Raises:
        ConfigError: the config is invalid; the message names all problems.
        DetError: the file cannot be read.
    """
    # Imported here: only commands with a config need YAML.
    from det_keras.config import load_experiment_config, load_yaml

    text = _read(path)
    # By itself, so that a syntax error names the file.
    given = load_yaml(text, source=path)
    loaded = load_experiment_config(text, overrides=overrides, find_template=find_template)
    if loaded.original != text:
        given = load_yaml(loaded.original)
    return ExperimentFile(loaded.original, given, loaded.config, loaded.notices, loaded.portable)


def templates_of(settings: Settings) -> FindTemplate:
    """Return the function that fetches a template of the master, which is found when it is called."""

    def find(name: str) -> dict[str, Any]:
        with open_session(settings) as session:
            if session.api.accounts.is_determined():
                raise DetError(
                    "Only a master of det_keras completes a config by the template that it names. Copy its fields into "
                    "the config."
                )
            config: dict[str, Any] = session.api.templates.get(name)["config"]
            return config

    return find


def read_changes(path: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return changes of a config: the content of a file, if there is one, changed by `overrides`.

    Raises:
        ConfigError: the file is not YAML, or an override is invalid.
        DetError: the file cannot be read.
    """
    from det_keras.config import apply_overrides, load_yaml

    given = {} if path is None else load_yaml(_read(path), source=path, may_be_empty=True)
    return apply_overrides(given, overrides)


def read_job(path: str, overrides: Sequence[str], find_template: FindTemplate | None = None) -> JobFile:
    """Return the job config in a file, changed by `overrides`; the arguments are those of `read_experiment`.

    Raises:
        ConfigError: the config is invalid; the message names all problems.
        DetError: the file cannot be read.
    """
    from det_keras.config import load_job_config, load_yaml

    text = _read(path)
    load_yaml(text, source=path)
    loaded = load_job_config(text, overrides=overrides, find_template=find_template)
    return JobFile(load_yaml(loaded.original), loaded.config, loaded.portable)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DetError(f"The config file {path!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DetError(f"The config file {path!r} is not UTF-8 text: {error.reason}.") from error
