"""The process that writes big checkpoints: `python -m det_keras.core.writer_process DESCRIPTOR SIZE`.

It shares the buffer_pool with the training process and nothing else, least of all Python's interpreter lock,
and it steps aside for training where they compete for a core. Jobs come as pickles on standard input,
answers go to standard output. It ends with the training process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

from det_keras.core.buffer_pool import open_buffer_pool
from det_keras.core.file_plan import store_files
from det_keras.core.writer_messages import Answer, Order, receive, send

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_NICENESS = 10


def main() -> None:
    """Store what is ordered until the training process closes the pipe."""
    _die_with_parent()
    # Ctrl-C and a stop go to the whole process group; the training process answers them, with a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    descriptor, size_bytes = int(sys.argv[1]), int(sys.argv[2])
    answers = sys.stdout.buffer
    memory = open_buffer_pool(descriptor, size_bytes)
    while (order := receive(sys.stdin.buffer)) is not None:
        send(answers, _carry_out(order, memory))


def _carry_out(order: Order, memory: memoryview) -> Answer:
    try:
        store_files(order.storage, order.uuid, order.plan, memory[order.offset :])
    except OSError as error:
        return Answer(str(error), error.errno)
    except Exception as error:
        return Answer(f"{type(error).__name__}: {error}")
    return Answer()


def _die_with_parent() -> None:
    """End with the training process, however it ends: a later run may own the storage by then."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
