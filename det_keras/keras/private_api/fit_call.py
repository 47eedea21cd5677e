"""Keras's own `fit`, behind what other libraries put before it.

A library that records trainings wraps `keras.Model.fit`: it reads the arguments, adds a callback, and waits for the end
of the call. So a managed training is one call of `model.fit` with the arguments of the user, and takes the place of
Keras's own code inside of that call. A wrapper holds the function that it wraps, and may have been made before this
package was imported: the place is the closure in which Keras itself keeps its code.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

import keras

# Keras 3.12 to 3.15.
from keras.src.backend.tensorflow import trainer as keras_trainer

from det_keras.errors import DetError

#: The arguments of `keras.Model.fit` by name, in its order.
FIT_ARGUMENTS: Mapping[str, inspect.Parameter] = {
    name: parameter
    for name, parameter in inspect.signature(keras_trainer.TensorFlowTrainer.fit).parameters.items()
    if name != "self"
}

# What takes the place of Keras's code in the next call for a model, by the id of the model.
_replacements: dict[int, Callable[..., Any]] = {}


def call_fit(model: Any, given: Mapping[str, Any], train: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Call `model.fit`, in which `train` takes the place of Keras's own code.

    Args:
        model: the model.
        given: the arguments of the user, by name.
        train: called with the arguments that arrive at Keras's code, by name; its result is that of the call.

    Returns:
        The result of the call.

    Raises:
        DetError: a `fit` of the model's own class does not call that of Keras.
    """
    keras_fit()
    raised: list[tuple[Exception, BaseException | None, bool]] = []

    def replacement(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(FIT_ARGUMENTS, args, strict=False)) | kwargs
        try:
            return train(named)
        except Exception as error:
            raised.append((error, error.__cause__, error.__suppress_context__))
            raise

    _replacements[id(model)] = replacement
    positional = [given[name] for name in ("x", "y") if name in given]
    named = {name: value for name, value in given.items() if name not in ("x", "y")}
    try:
        result = model.fit(*positional, **named)
    except Exception as error:
        for known, cause, is_suppressed in raised:
            if known is error:
                # Keras leaves the cause out where it shortens the traceback.
                error.__cause__, error.__suppress_context__ = cause, is_suppressed
        raise
    finally:
        was_called = _replacements.pop(id(model), None) is None
    if not was_called:
        raise DetError(
            f"`{type(model).__name__}.fit` does not call the `fit` of Keras, so that nothing of its training can be "
            "saved or resumed. Write it as a loop: `context.track` and `context.batches`."
        )
    return result


@functools.cache
def keras_fit() -> Callable[..., Any]:
    """Return Keras's own code of `fit`; what reaches it for a model with a replacement is led there."""
    owner, place = next(_places())
    own: Any = place.cell_contents if isinstance(place, CellType) else vars(owner)["fit"]

    @functools.wraps(own)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _replacements.pop(id(self), functools.partial(own, self))(*args, **kwargs)

    if isinstance(place, CellType):
        place.cell_contents = fit
    else:
        owner.fit = fit
    result: Callable[..., Any] = own
    return result


def _places() -> Iterator[tuple[Any, CellType | None]]:
    """Yield where Keras's own code of `fit` is: a class, and the cell of a closure below its attribute, if any."""
    for owner in keras.Model.__mro__:
        seen: set[int] = set()
        waiting: deque[tuple[Any, CellType | None]] = deque([(vars(owner).get("fit"), None)])
        while waiting:
            function, cell = waiting.popleft()
            if not isinstance(function, FunctionType) or id(function) in seen:
                continue
            seen.add(id(function))
            code = function.__code__
            if code.co_name == "fit" and code.co_filename == keras_trainer.__file__:
                yield owner, cell
            waiting += [
                (below.cell_contents, below) for below in function.__closure__ or () if _is_set(below)
            ]
            waiting.append((getattr(function, "__wrapped__", None), None))


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
