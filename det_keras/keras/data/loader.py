"""Loads the batches of a PyDataset ahead of training, in order, with threads or processes as the dataset defines."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

_LOOK_S = 1.0

# The dataset of a worker process: it is sent once per process instead of once per batch.
_dataset: Any = None


def load_batches(dataset: Any, indices: Iterable[int]) -> Iterator[Any]:
    """Yield ``dataset[i]`` for each index in order.

    Uses the dataset's ``workers``, ``use_multiprocessing`` and ``max_queue_size`` as Keras does: with
    one worker and no processes, batches are loaded on the calling thread.
    """
    workers = int(getattr(dataset, "workers", 1) or 1)
    use_processes = bool(getattr(dataset, "use_multiprocessing", False))
    if workers <= 1 and not use_processes:
        for index in indices:
            yield dataset[index]
        return
    ahead = max(int(getattr(dataset, "max_queue_size", 10) or 10), 1)
    executor: Executor
    if use_processes:
        context = multiprocessing.get_context("fork")
        executor = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin_worker, initargs=(dataset, os.getpid())
        )
        item = _item_of_worker
    else:
        executor = ThreadPoolExecutor(workers, thread_name_prefix="det-data")
        item = dataset.__getitem__
    try:
        yield from _in_order(executor, item, indices, ahead)
    finally:
        # Do not wait for batches that are still being loaded: nothing will use them.
        executor.shutdown(wait=False, cancel_futures=True)


def _in_order(executor: Executor, item: Any, indices: Iterable[int], ahead: int) -> Iterator[Any]:
    futures: deque[Any] = deque()
    for index in indices:
        futures.append(executor.submit(item, index))
        if len(futures) >= ahead:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def _begin_worker(dataset: Any, parent: int) -> None:
    global _dataset
    _dataset = dataset
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process when the training process has ended, even if it was killed.

    A worker would otherwise wait for work without end.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _item_of_worker(index: int) -> Any:
    return _dataset[index]
