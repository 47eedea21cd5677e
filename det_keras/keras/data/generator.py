"""Batches of a Python generator or a PyTorch DataLoader, read in the same way as in Keras.

The position of neither can be restored: a resume draws and drops as many batches as were trained.
"""

from __future__ import annotations

import logging
from typing import Any

from det_keras.keras.data.tfdata import TfDataSource
from det_keras.keras.private_api import generator_dataset

logger = logging.getLogger(__name__)


class GeneratorSource(TfDataSource):
    """Batches of a generator, drawn in order, or of a DataLoader, which is read from its beginning in each epoch.

    Args:
        source: the user's generator or DataLoader.
        steps_per_epoch: batches that count as one epoch; by default all batches.
    """

    def __init__(self, source: Any, *, steps_per_epoch: int | None = None) -> None:
        dataset, num_batches = generator_dataset(source)
        self.kind = type(source).__name__
        super().__init__(
            dataset, steps_per_epoch=steps_per_epoch, num_batches=num_batches, reads_every_pass=True
        )

    def warn_of_unseen_state(self) -> None:
        """Log at the start that a resumed run is exact only if the source returns the same batches again."""
        logger.warning(
            "A %s has no position that could be restored: on a resume as many batches are drawn from it and dropped "
            "as were trained. That is exact if it gives the same batches in each run, and not if it depends on "
            "state that cannot be restored: a thread, the clock, a service. `det experiment create --verify-resume` "
            "finds out. A `keras.utils.PyDataset`, or a `tf.data.Dataset` of TensorFlow ops, has no such state.",
            self.kind,
        )
