"""Problems of a config: collected, so that all of them are reported at once, with suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from det_keras.errors import ConfigError, ConfigProblem


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


def did_you_mean(given: Any, names: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the nearest of `names`; empty if none is near."""
    if not isinstance(given, str):
        return ""
    by_folded = {name.lower().replace("-", "_"): name for name in names}
    near = difflib.get_close_matches(given.lower().replace("-", "_"), by_folded, n=1, cutoff=0.6)
    return f" Did you mean `{by_folded[near[0]]}`?" if near else ""
