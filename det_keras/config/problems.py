"""Collects problems, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from det_keras.errors import ConfigError, ConfigProblem

__all__ = ["Problems"]


class Problems(list[ConfigProblem]):
    """A growing list of problems."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the problems of a ConfigError raised in the block, and continue after the block."""
        try:
            yield
        except ConfigError as error:
            self.extend(error.problems)

    def raise_if_any(self) -> None:
        """Raise a ConfigError with all problems, if there are any."""
        if self:
            raise ConfigError(self)
