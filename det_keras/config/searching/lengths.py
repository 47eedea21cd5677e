"""Amounts of training: a number of batches, records or epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from det_keras.errors import ConfigError

#: The largest integer of databases and of clients in other languages.
INT64_MAX = 2**63 - 1

#: The paths of lengths in a config. A length is one value, although it is written as a mapping.
LENGTH_PATHS = ("min_validation_period", "min_checkpoint_period", "searcher.max_length", "searcher.budget")


class Unit(str, Enum):
    """The unit of a length."""

    BATCHES = "batches"
    RECORDS = "records"
    EPOCHS = "epochs"


@dataclass(frozen=True)
class Length:
    """An amount of training.

    Attributes:
        unit: the unit of `value`.
        value: at least 0; 0 means "no limit" or "never".
    """

    unit: Unit
    value: int

    @classmethod
    def batches(cls, value: int) -> Length:
        """Return a length of `value` batches."""
        return cls(Unit.BATCHES, value)

    @classmethod
    def parse(cls, raw: Any, *, path: str = "", minimum: int = 0) -> Length:
        """Parse a length such as ``{"batches": 1000}``.

        Args:
            raw: a mapping of one unit to an integer.
            path: its path in the config, for the error.
            minimum: the smallest valid number.

        Raises:
            ConfigError: `raw` is not a valid length.
        """
        units = ", ".join(unit.value for unit in Unit)
        if not isinstance(raw, Mapping):
            example = raw if isinstance(raw, int) and not isinstance(raw, bool) and raw >= minimum else 5
            raise ConfigError.at(
                path,
                f"{raw!r} has no unit. A length requires exactly one of {units}, such as `{{batches: {example}}}`.",
            )
        given = {key: value for key, value in raw.items() if value is not None}
        if len(given) != 1 or not set(given) <= {unit.value for unit in Unit}:
            raise ConfigError.at(
                path,
                f"a length requires exactly one of {units}, such as `{{epochs: 5}}`, received {dict(raw)!r}.",
            )
        ((name, value),) = given.items()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= INT64_MAX:
            raise ConfigError.at(
                f"{path}.{name}" if path else name,
                f"must be a whole number, at least {minimum}, received {value!r}.",
            )
        return cls(Unit(name), value)

    def to_dict(self) -> dict[str, int]:
        """Return the form that `parse` reads."""
        return {self.unit.value: self.value}

    def __str__(self) -> str:
        name = (
            self.unit.value
            if self.value != 1
            else {"batches": "batch"}.get(self.unit.value, self.unit.value[:-1])
        )
        return f"{self.value} {name}"

    @property
    def is_unlimited(self) -> bool:
        """Whether the length is 0, which means no limit."""
        return self.value == 0

    def to_batches(
        self,
        global_batch_size: int | None = None,
        records_per_epoch: int = 0,
        *,
        batches_per_epoch: int | None = None,
    ) -> int:
        """Return the length in batches, at least 1; a length of 0 stays 0.

        Args:
            global_batch_size: records in a batch, over all workers.
            records_per_epoch: the config's value; 0 if it has none. A value above 0 defines the epoch.
            batches_per_epoch: the length of one pass over the data, which otherwise defines the epoch.

        Raises:
            ValueError: an argument that the conversion needs is missing or below 1.
        """
        if self.is_unlimited or self.unit is Unit.BATCHES:
            return self.value
        if self.unit is Unit.RECORDS:
            return max(self.value // self._checked(global_batch_size), 1)
        if records_per_epoch > 0:
            # Multiplied before the division: 10 epochs of 60000 records at 128 are 4687 batches, not 10 times 468.
            return max(self.value * records_per_epoch // self._checked(global_batch_size), 1)
        if batches_per_epoch is None or batches_per_epoch < 1:
            raise ValueError(
                f"{self} cannot be converted to batches: the length of an epoch is not known. "
                "Set `records_per_epoch` in the config, or pass `steps_per_epoch` to fit."
            )
        return self.value * batches_per_epoch

    def count(
        self,
        batches: int,
        global_batch_size: int | None = None,
        records_per_epoch: int = 0,
        *,
        batches_per_epoch: int | None = None,
    ) -> float:
        """Convert a number of batches to the unit of this length; the result may be a fraction.

        Args:
            batches: number of batches.
            global_batch_size: as in `to_batches`.
            records_per_epoch: as in `to_batches`.
            batches_per_epoch: as in `to_batches`.
        """
        if self.unit is Unit.BATCHES:
            return float(batches)
        if self.unit is Unit.RECORDS:
            return float(batches * self._checked(global_batch_size))
        epoch = Length(Unit.EPOCHS, 1)
        return batches / epoch.to_batches(
            global_batch_size, records_per_epoch, batches_per_epoch=batches_per_epoch
        )

    def fraction(
        self,
        batches: int,
        global_batch_size: int | None = None,
        records_per_epoch: int = 0,
        *,
        batches_per_epoch: int | None = None,
    ) -> float:
        """Return a number of batches as a fraction of this length, 0.0 to 1.0; 0.0 if it is unlimited.

        Args:
            batches: number of batches.
            global_batch_size: as in `to_batches`.
            records_per_epoch: as in `to_batches`.
            batches_per_epoch: as in `to_batches`.
        """
        whole = self.to_batches(global_batch_size, records_per_epoch, batches_per_epoch=batches_per_epoch)
        return min(max(batches / whole, 0.0), 1.0) if whole else 0.0

    def _checked(self, global_batch_size: int | None) -> int:
        if global_batch_size is None:
            raise ValueError(
                f"{self} cannot be converted to batches without the hyperparameter `global_batch_size`. "
                "Add it to `hyperparameters`, or give the length in batches."
            )
        if global_batch_size < 1:
            raise ValueError(f"`global_batch_size` is {global_batch_size}. It must be at least 1.")
        return global_batch_size
