"""Phases: the `fit` calls of one script, which are identified when the script runs again."""

from __future__ import annotations

import base64
import builtins
import logging
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from det_keras.errors import ModelMismatchError
from det_keras.keras.private_api.models import calling_frames

logger = logging.getLogger(__name__)

_NUMBERS_HINT = (
    "Only the numbers of automatic names differ: Keras counts the layers of a process, and this one made some before. "
    "Call `keras.utils.clear_session()` before you make the model, in a notebook in the same cell; or name the layers."
)
_OWN_RESUME_HINT = (
    "If the script resumes by itself, remove what does that: its own `initial_epoch`, and the `load_model` or "
    "`load_weights` before `fit`. `fit` continues from its checkpoint."
)


#: The exceptions that left a training on its workers, by rank; see `describe_error`.
Raised = list[dict[str, Any]]


@dataclass(frozen=True)
class PhaseRecord:
    """A finished phase.

    Attributes:
        signature: the values that identify the phase; see `phase_signature`.
        history: the state of its `FitHistory`.
        batches: number of batches that it trained.
        data: the state of the data at its end, as JSON values; see `DataPart.skip`.
        raised: the exceptions that left it, which the script caught; None if it ended.
    """

    signature: Mapping[str, Any]
    history: Mapping[str, Any]
    batches: int
    data: Mapping[str, Any] = field(default_factory=dict)
    raised: Raised | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, which `PhaseRecord(**...)` accepts."""
        return asdict(self)


@contextmanager
def own_error_first() -> Iterator[None]:
    """Log what goes wrong in keeping a training that the script has left by an error: the script gets its own error."""
    try:
        yield
    except Exception:
        logger.warning("The state in which the training was left cannot be kept.", exc_info=True)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON values, for `rebuild_error` in a later process."""
    try:
        arguments = pickle.dumps(error.args)
    except Exception:
        # The arguments may be of any class.
        arguments = pickle.dumps((str(error),))
    kind = type(error)
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "arguments": base64.b64encode(arguments).decode(),
    }


def error_of_rank(raised: Raised, rank: int) -> BaseException:
    """Return the exception that left a training on a worker; that of the chief if there were fewer workers."""
    return rebuild_error(raised[rank if rank < len(raised) else 0])


def rebuild_error(raised: Mapping[str, Any]) -> BaseException:
    """Return the exception that `describe_error` described; a RuntimeError if its class is not found."""
    arguments = pickle.loads(base64.b64decode(raised["arguments"]))
    module, name = raised["module"], raised["name"]
    kind = getattr(sys.modules.get(module, builtins), name, None)
    for frame in calling_frames():
        # The script's own class: its module may have another name than when it is imported.
        kind = kind or frame.f_globals.get(name, frame.f_locals.get(name))
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return RuntimeError(f"{name}: {', '.join(map(str, arguments))}")
    error: BaseException = kind.__new__(kind, *arguments)
    return error


def phase_signature(
    *,
    epochs: int | None,
    initial_epoch: int,
    data: Mapping[str, Any],
    trainable: list[str],
    virtual_workers: int = 1,
) -> dict[str, Any]:
    """Return the values that identify a phase, as JSON values.

    Args:
        epochs: as passed to `fit`; None if the config or a searcher sets the length.
        initial_epoch: the epoch from which the phase counts, from 0.
        data: the description of the training data by its source.
        trainable: paths of the trainable variables.
        virtual_workers: their number; 1 for none.
    """
    return {
        "epochs": epochs,
        "initial_epoch": initial_epoch,
        "data": dict(data),
        "trainable": trainable,
        "virtual_workers": virtual_workers,
    }


def check_signature(index: int, saved: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Compare the signature of a phase with the one in the checkpoint.

    Args:
        index: number of the phase, from 0, for the error message.
        saved: the signature in the checkpoint.
        found: the signature of the running script.

    Raises:
        ModelMismatchError: the signatures differ; the message names the difference.
    """
    saved_data, data = saved["data"], found["data"]
    # Missing in checkpoints that were made before there were any.
    saved_parts, parts = saved.get("virtual_workers", 1), found["virtual_workers"]
    if saved_parts != parts:
        raise ModelMismatchError(
            f"The checkpoint was trained with `reproducibility.virtual_workers: {saved_parts}`, this script asks for "
            f"{parts}, which gives another model. Use {saved_parts}, or start from the beginning."
        )
    _check_batch_size(saved_data, data)
    if saved["epochs"] != found["epochs"]:
        raise _changed(index, "`epochs`", saved["epochs"], found["epochs"])
    if saved["initial_epoch"] != found["initial_epoch"]:
        hint = _OWN_RESUME_HINT if found["initial_epoch"] else ""
        raise _changed(index, "`initial_epoch`", saved["initial_epoch"], found["initial_epoch"], hint=hint)
    check_data_unchanged(index, saved_data, data)
    if saved["trainable"] != found["trainable"]:
        only_saved = [path for path in saved["trainable"] if path not in found["trainable"]]
        only_found = [path for path in found["trainable"] if path not in saved["trainable"]]
        raise _changed(
            index,
            "the trainable variables",
            only_saved or saved["trainable"],
            only_found or found["trainable"],
            hint=_NUMBERS_HINT
            if _without_numbers(saved["trainable"]) == _without_numbers(found["trainable"])
            else "",
        )


def check_data_unchanged(index: int, saved: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Compare the description of data with the one in the checkpoint; arguments and errors as `check_signature`."""
    _check_batch_size(saved, found)
    for name in sorted(set(saved) | set(found)):
        if saved.get(name) != found.get(name):
            raise _changed(index, f"the data's {name}", saved.get(name), found.get(name))


def _check_batch_size(saved: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if saved.get("batch_size") != found.get("batch_size"):
        raise ModelMismatchError(
            f"The checkpoint was trained with a global batch size of {saved.get('batch_size')}, this script asks "
            f"for {found.get('batch_size')}. Use {saved.get('batch_size')}, or start from the beginning."
        )


def _without_numbers(paths: list[str]) -> list[str]:
    """Return paths of variables without the numbers that Keras appends to repeated layer names."""
    return [re.sub(r"_\d+(?=/|$)", "", path) for path in paths]


def _changed(index: int, what: str, saved: Any, found: Any, *, hint: str = "") -> ModelMismatchError:
    return ModelMismatchError(
        f"The script changed since the checkpoint: in training number {index + 1}, {what} was {saved!r} and is "
        f"{found!r}. {hint or 'Resume with the script that wrote the checkpoint, or start from the beginning.'}"
    )
