"""The errors that a caller may want to catch, with a common base class.

Misuse of an argument raises the builtin ``ValueError`` or ``TypeError``. The classes here are for errors that a
program can handle: a broken environment, a broken config, a checkpoint that cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "CheckpointError",
    "ClusterInfoError",
    "ConfigError",
    "ConfigProblem",
    "DetError",
    "DivergenceError",
    "InvalidHP",
    "MasterError",
    "MasterUnavailableError",
    "ModelMismatchError",
    "NotATrainingJobError",
    "StorageError",
    "TensorFlowMissingError",
]


class DetError(Exception):
    """Base class of every error that det_keras defines."""


class TensorFlowMissingError(DetError, ImportError):
    """`det_keras.keras` was imported, but TensorFlow is not installed."""


class ClusterInfoError(DetError):
    """A DET_* variable or info file is missing or malformed."""


@dataclass(frozen=True)
class ConfigProblem:
    """One wrong place in a configuration.

    Attributes:
        path: the field, dotted from the root: ``searcher.max_trials``; empty for the whole file.
        message: what is wrong, with the value, and what would be valid.
    """

    path: str
    message: str

    def __str__(self) -> str:
        where = f"<config>.{self.path}" if self.path else "<config>"
        return f"{where}: {self.message}"


class ConfigError(DetError):
    """A configuration cannot be used; `problems` lists every wrong field at once.

    Args:
        problems: all problems, in the order of the file; at least one.
    """

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, path: str, message: str) -> ConfigError:
        """Return an error with the single problem `message` at `path`."""
        return cls([ConfigProblem(path, message)])


class NotATrainingJobError(DetError, AttributeError):
    """An attribute of a training job was used in a process that is not a training job."""


class CheckpointError(DetError):
    """A checkpoint is missing, incomplete or corrupt, or could not be written."""


class CheckpointMissingError(CheckpointError):
    """A checkpoint is not in the storage."""


class StorageError(DetError, OSError):
    """An object store could not be read or written; the message names the bucket and the key.

    Args:
        message: what happened, and what to do.
        can_retry: whether the same call may succeed later without a change by the user.
    """

    def __init__(self, message: str, *, can_retry: bool = True) -> None:
        super().__init__(message)
        self.can_retry = can_retry


class ModelMismatchError(CheckpointError):
    """A checkpoint does not fit the model, optimizer or phases of the running script."""


class DivergenceError(DetError):
    """Replicas that must be equal differ."""


class MasterError(DetError):
    """The master answered a call with an error.

    Args:
        status: the HTTP status, such as 404.
        message: the master's message.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


class MasterUnavailableError(DetError):
    """No master answers at the configured address."""


class InvalidHP(DetError):  # noqa: N818 - the name is the public API of the original
    """Raised by a script to report that its hyperparameters are invalid.

    The trial ends and is not restarted; the search continues.
    """
