"""The checksums of records of events: CRC-32C, for many records at once.

A record's checksum is computed byte by byte. In Python that takes minutes for what people keep of a few hundred runs.
Here records of the same length are computed together, so that NumPy does each byte of all of them in one step.

Source: `tensorflow/core/lib/hash/crc32c.h`; the polynomial is that of RFC 3720.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Bytes that are computed together.
_MOST_BYTES = 16 << 20


def _table() -> npt.NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1).astype(np.uint32)
    return values


_TABLE = _table()


def masked_crc32c(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the masked checksum of each row.

    Args:
        rows: uint8, (rows, bytes).

    Returns:
        uint32, (rows,).
    """
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return (rotated + np.uint32(_MASK_DELTA)).astype(np.uint32)


def bad_record(data: bytes, places: Sequence[tuple[int, int]]) -> int | None:
    """Return the start of the first record whose checksum, which follows it, is wrong; None if all are right.

    Args:
        data: the file.
        places: start and size of each record.
    """
    if not places:
        return None
    everything = np.frombuffer(data, np.uint8)
    all_starts, sizes = np.array(places, np.int64).T
    wrong = []
    for size in np.unique(sizes):
        starts = all_starts[sizes == size]
        at_once = max(1, _MOST_BYTES // (int(size) + 4))
        for first in range(0, len(starts), at_once):
            some = starts[first : first + at_once]
            rows = everything[some[:, None] + np.arange(size + 4)]
            stored = np.ascontiguousarray(rows[:, size:]).view("<u4")[:, 0]
            differs = masked_crc32c(rows[:, :size]) != stored
            wrong += some[differs].tolist()
    return min(wrong, default=None)
