"""The learning rates of optimizers, as metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from det_keras.keras.private_api.steps import learning_rate

logger = logging.getLogger(__name__)

_NAME = "learning_rate"


class LearningRates:
    """Reads learning rates between batches, also those of schedules.

    One that cannot be read is left out, and the reason is logged once: a metric that nobody asked for must not end a
    training.
    """

    def __init__(self) -> None:
        self._has_failed = False

    def read(self, optimizers: Iterable[Any]) -> dict[str, float]:
        """Return the rates with which the next batch is trained.

        The only one is ``learning_rate``. Of several, each has the name of its optimizer as well, as Keras names them,
        and a number if another one has that name.
        """
        rates = [
            (optimizer.name, rate) for optimizer in optimizers if (rate := self._rate(optimizer)) is not None
        ]
        if len(rates) == 1:
            return {_NAME: rates[0][1]}
        found: dict[str, float] = {}
        for name, rate in rates:
            key, number = f"{_NAME}_{name}", 1
            while key in found:
                number += 1
                key = f"{_NAME}_{name}_{number}"
            found[key] = rate
        return found

    def _rate(self, optimizer: Any) -> float | None:
        try:
            rate = learning_rate(getattr(optimizer, "inner_optimizer", optimizer))
            return None if rate is None else float(np.asarray(rate))
        except Exception:
            # A schedule may be the script's.
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "The learning rate of %s cannot be read between batches, and is not reported.",
                    type(optimizer).__name__,
                    exc_info=True,
                )
            return None
