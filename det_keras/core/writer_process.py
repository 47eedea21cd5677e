"""The process that writes big checkpoints: `python -m det_keras.core.writer_process DESCRIPTOR SIZE`.

It shares only the buffer pool with the training process, not Python's interpreter lock, and runs with low priority.
Orders are pickles on standard input, answers are pickles on standard output. It ends with the training process.

The buffer is not locked: the training process does not change it between an order and its answer.
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
from det_keras.errors import StorageError

_PR_SET_PDEATHSIG = 1
_NICENESS = 10


def main() -> None:
    """Execute orders until the training process closes the pipe."""
    _die_with_parent()
    # Ctrl-C and requests to stop reach the whole process group. The training process handles them with a checkpoint,
    # which this process must still write.
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
    except StorageError as error:
        # A copy without the foreign errors behind it, which may not be picklable.
        return Answer(str(error), storage_error=StorageError(str(error), can_retry=error.can_retry))
    except OSError as error:
        return Answer(str(error), error.errno)
    except Exception as error:
        return Answer(f"{type(error).__name__}: {error}")
    return Answer()


def _die_with_parent() -> None:
    """End together with the training process, even if it is killed: a later run may use the storage by then."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent ended before the call, no signal comes.
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
