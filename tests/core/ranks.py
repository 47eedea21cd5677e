"""Several ranks of one job as threads of the test's process."""

from __future__ import annotations

import threading

from det_keras.core import DistributedContext
from det_keras.launch.network import free_port


def on_ranks(size, work, **options):
    """Run `work(distributed)` on every rank and return what each returned, or the exception that it raised."""
    port = free_port("127.0.0.1")
    results = [None] * size

    def run(rank):
        try:
            distributed = DistributedContext(
                rank=rank, size=size, local_rank=rank, local_size=size, pub_port=port, **options
            )
            try:
                results[rank] = work(distributed)
            finally:
                distributed.close()
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results
