"""Collecting all that is wrong, so that it is reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from det_keras.errors import ConfigError, ConfigProblem

__all__ = ["Problems"]


class Problems(list[ConfigProblem]):
    """A growing list of problems."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Add the problems of a ConfigError raised in the block, and go on after it."""
        try:
            yield
        except ConfigError as error:
            self.extend(error.problems)

    def raise_if_any(self) -> None:
        """Raise a ConfigError with all of them, if there are any."""
        if self:
            raise ConfigError(self)
