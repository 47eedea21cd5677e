"""Reports of metrics a second, with and without the short way into the database (`reports.metrics.add_quickly`).

A report that only adds a row is stored by bare statements instead of a session. Of two masters one does this, the other
uses a session for every report. Both store the reports that arrive together in one commit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench_master import Client, Ours
from measure import in_turns, report

from det_keras.home import Home
from det_keras.master import process

TURNS, EACH, CLIENTS = 9, 320, 16
VARIANTS = ("bare", "session")


def serve(home: Path, variant: str) -> int:
    """Run a master that stores reports by bare statements or by a session."""
    from det_keras.master import __main__ as master
    from det_keras.master.reports import batcher, metrics

    def store_next(self: Any, items: Sequence[Any]) -> list[Any]:
        try:
            with self._store.writing() as tx:
                for item in items:
                    self._report(tx, item.report)
        except Exception as error:
            for item in items:
                item.call.errors[item.index] = error
        return []

    if variant == "session":
        metrics.add_quickly = lambda _, reports, calls: [False] * len(reports)  # type: ignore[assignment]
        batcher.ReportBatcher._store_next = store_next  # type: ignore[method-assign]
    sys.argv[1:] = ["--home", str(home), "--slots", "1"]
    return master.main()


class Master:
    """A running master, and the trials to which its clients report."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._server = Ours()
        self._clients = [Client(int(url.rpartition(":")[2]), headers) for _ in range(CLIENTS)]
        self._trials = [self._server.new_trial(client) for client in self._clients]
        self._steps = itertools.count(1)

    def send(self, clients: int) -> None:
        """Report `EACH` times from so many clients at once."""
        steps = [next(self._steps) for _ in range(EACH // clients)]

        def work(index: int) -> None:
            for step in steps:
                self._server.report(self._clients[index], self._trials[index], step)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def running(variant: str) -> Iterator[Master]:
    """Run a master and yield it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", variant, "--home", folder], stderr=subprocess.DEVNULL
        )
        try:
            while (found := process.find(home)) is None:
                assert child.poll() is None, "The master did not start."
                time.sleep(0.05)
            yield Master(found.url, home.token_file.read_text())
        finally:
            child.terminate()
            child.wait()


def main() -> None:
    """Measure."""
    with contextlib.ExitStack() as stack:
        masters = [stack.enter_context(running(variant)) for variant in VARIANTS]
        for clients in (1, CLIENTS):
            actions = [functools.partial(master.send, clients) for master in masters]
            for action in actions:
                action()
            seconds = in_turns(TURNS, *actions)
            rates = dict(zip(VARIANTS, (EACH / duration for duration in seconds), strict=True))
            detail = "; ".join(f"{name}: {rate:.0f}/s" for name, rate in rates.items())
            report(
                f"reports a second by bare statements, against a session ({clients} clients)",
                rates["bare"] / rates["session"],
                detail=detail,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=VARIANTS)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    if options.serve is not None:
        sys.exit(serve(options.home, options.serve))
    main()
