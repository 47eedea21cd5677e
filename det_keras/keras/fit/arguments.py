"""The arguments of `fit`, validated when `fit` is called."""

from __future__ import annotations

import inspect
import logging
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data import DataSource, is_arrays, open_source, split_arrays, whole_data
from det_keras.keras.data.tfdata import TfDataSource
from det_keras.keras.fit.validator import Validator, unpack
from det_keras.keras.private_api.fit_call import FIT_ARGUMENTS

logger = logging.getLogger(__name__)

_OF_THE_CHIEF = (keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard, keras.callbacks.CSVLogger)


@dataclass
class FitArguments:
    """The arguments of `context.fit`: those of `keras.Model.fit` and the additional ones listed below.

    Attributes:
        x_val: validation inputs, another way to give `validation_data`.
        y_val: validation targets.
        validate: False for a model that cannot be validated.
        on_nan: effect of a loss that is not finite: ``report`` logs a warning once, ``stop`` ends the trial.
    """

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: Any = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1
    x_val: Any = None
    y_val: Any = None
    validate: bool = True
    on_nan: str = "report"
    user_callbacks: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.x is None:
            raise ValueError("`fit` needs training data: pass `x`.")
        if self.on_nan not in ("report", "stop"):
            raise ValueError(f"`on_nan` is 'report' or 'stop'. Received: {self.on_nan!r}.")
        self._check_counts()
        if self.class_weight is not None and self.sample_weight is not None:
            raise ValueError("`class_weight` and `sample_weight` cannot be given together.")
        if self.x_val is not None:
            if self.validation_data is not None:
                raise ValueError("Give validation data once: `validation_data`, or `x_val` and `y_val`.")
            self.validation_data = self.x_val if self.y_val is None else (self.x_val, self.y_val)
        is_given = self.validation_data is not None or bool(self.validation_split)
        if self.validate and not is_given:
            raise ValueError(
                "`context.fit` needs validation data: pass `validation_data=(x_val, y_val)`, "
                "`validation_split=0.1`, or `x_val=` and `y_val=`; or `validate=False` for a model that cannot be "
                "validated: its training metrics are then what searches and checkpoints go by."
            )
        if is_given and not self.validate:
            raise ValueError("`validate=False` and validation data were given. Leave one of them out.")
        self.user_callbacks = _checked_callbacks(self.callbacks)

    def _check_counts(self) -> None:
        """Check all numbers and convert them to Python values: checkpoints store them as JSON, without NumPy types."""
        self.epochs = checked_count("epochs", self.epochs, at_least=0)
        self.initial_epoch = checked_count("initial_epoch", self.initial_epoch, at_least=0)
        for name in ("batch_size", "steps_per_epoch", "validation_steps", "validation_batch_size"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, checked_count(name, value, hint=" Leave it out for the default."))
        if isinstance(self.validation_freq, Iterable):
            self.validation_freq = tuple(
                checked_count("validation_freq", epoch, hint=" It holds the epochs after which to validate.")
                for epoch in self.validation_freq
            )
        else:
            self.validation_freq = checked_count("validation_freq", self.validation_freq)
        if isinstance(self.shuffle, str) and self.shuffle != "batch":
            raise ValueError(f"`shuffle` is True, False or 'batch'. Received: {self.shuffle!r}.")
        if not isinstance(self.shuffle, str):
            self.shuffle = bool(self.shuffle)

    def for_keras(self) -> dict[str, Any]:
        """Return the arguments that differ from the defaults of `keras.Model.fit`, by name, as a user passes them."""
        values = {name: getattr(self, name) for name in FIT_ARGUMENTS if name != "callbacks"}
        given = {
            name: value for name, value in values.items() if not _is_same(value, FIT_ARGUMENTS[name].default)
        }
        return {**given, "callbacks": list(self.user_callbacks)} if self.user_callbacks else given

    def changed(self, received: Mapping[str, Any]) -> FitArguments:
        """Return the arguments as `keras.Model.fit` received them: a library may have added a callback."""
        return replace(self, **received, x_val=None, y_val=None)

    def open(
        self, seed: int, workers: DistributedContext, *, wraps_around: bool
    ) -> tuple[DataSource, Validator | None]:
        """Return the training data in an order made with `seed`, and the validator, None without validation data.

        Args:
            seed: decides the order of the data.
            workers: the workers that share the training and the validation data.
            wraps_around: an epoch continues at the beginning of the data when the data ends before `steps_per_epoch`.

        Raises:
            TypeError, ValueError: the data cannot be used; the message says why.
        """
        data = (self.x, self.y, self.sample_weight)
        validation_data = self.validation_data
        if workers.size > 1:
            data = whole_data(data)
            if validation_data is not None:
                validation_data = whole_data(unpack(validation_data))
        if validation_data is None and self.validate:
            data, validation_data = self._split(data)
        source = open_source(
            data,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=seed,
            steps_per_epoch=self.steps_per_epoch,
            class_weight=self.class_weight,
            workers=workers,
            wraps_around=wraps_around,
        )
        if isinstance(source, TfDataSource) and workers.is_chief:
            source.warn_of_unseen_state()
        if not self.validate:
            return source, None
        validator = Validator(
            validation_data,
            batch_size=self.validation_batch_size or self.batch_size,
            steps=self.validation_steps,
            freq=self.validation_freq,
            workers=workers,
        )
        if isinstance(source, TfDataSource):
            source.is_shared_with_validation = validator.is_open and source.shares_shuffle_with(
                validator.source
            )
        return source, validator

    @property
    def datasets(self) -> dict[str, Any]:
        """The training and validation data by name, where it is datasets, which have a state of their own."""
        given = {"x": self.x, "validation_data": unpack(self.validation_data)[0]}
        return {name: data for name, data in given.items() if data is not None and not is_arrays(data)}

    @property
    def generators(self) -> dict[str, Any]:
        """Those of `datasets` that are generators: they hold objects that may change."""
        return {name: data for name, data in self.datasets.items() if inspect.isgenerator(data)}

    def callbacks_of(self, *, is_chief: bool) -> list[Any]:
        """Return the user's callbacks for one rank; callbacks that write shared files run on the chief only."""
        if is_chief:
            return self.user_callbacks
        # Replace them in the list: checkpoints store callback states by index.
        return [
            keras.callbacks.Callback() if isinstance(callback, _OF_THE_CHIEF) else callback
            for callback in self.user_callbacks
        ]

    def verbosity(self, *, is_chief: bool) -> int:
        """Return Keras's `verbose`: 1 on a terminal, 2 (a line per epoch) otherwise, 0 on other ranks."""
        if not is_chief:
            return 0
        if self.verbose == "auto":
            return 1 if sys.stdout.isatty() else 2
        return int(self.verbose)

    def _split(self, data: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        if not is_arrays(self.x):
            raise ValueError(
                f"`validation_split` needs arrays, not a {type(self.x).__name__}. Pass `validation_data` instead."
            )
        if self.y is None and self.sample_weight is not None:
            raise ValueError("Sample weights need targets: pass `y` as well.")
        return split_arrays(data, self.validation_split)


def checked_count(name: str, value: Any, *, at_least: int = 1, hint: str = "") -> int:
    """Return an integer of any type, including NumPy integers, as a Python integer.

    Args:
        name: name of the argument, for the error message.
        value: the value that was given.
        at_least: the smallest valid value.
        hint: text that is appended to the error message.

    Raises:
        ValueError: `value` is not an integer, or is smaller than `at_least`.
    """
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None or count < at_least:
        raise ValueError(f"`{name}` must be an integer of at least {at_least}. Received: {value!r}.{hint}")
    return count


def _is_same(value: Any, default: Any) -> bool:
    # Arrays are compared element by element.
    return value is default or (isinstance(value, int | float | str) and bool(value == default))


def _checked_callbacks(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    kept = []
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            logger.warning(
                "BackupAndRestore is left out: it would load its own weights over the restored ones."
            )
            continue
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(
                f"A callback must be a keras.callbacks.Callback. Received a {type(callback).__name__}."
            )
        kept.append(callback)
    return kept
