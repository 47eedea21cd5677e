"""Sessions of commands: they start the embedded master if no master is named and none runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from det_keras.connection import masters
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.client import Session


def open_session(settings: Settings) -> Session:
    """Return a session with the master that the user means.

    Raises:
        DetError: there is no token for that master, or the embedded one cannot be started.
        MasterError: the master does not accept the password of the environment.
    """
    return masters.open_session(settings, _ensure_embedded)


def find_url(settings: Settings) -> str:
    """Return the address of the master that the user means; errors are those of `open_session`."""
    return masters.find_url(settings, _ensure_embedded)


def _ensure_embedded(settings: Settings) -> str:
    # Imported here: `det --help` needs no master.
    from det_keras.master import process

    running = process.find(settings.home)
    if running is None:
        running = process.start(settings.home, slots=settings.slots)
        print(
            f"Started the embedded master at {running.url} (det deploy local cluster-down stops it).",
            file=sys.stderr,
        )
    return running.url.rstrip("/")
