"""Sessions of commands: they start the embedded master if no master is named and none runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from det_keras.connection import masters
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.client import Session
from typing import TYPE_CHECKING

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


def determined_page(url: str, experiment_id: int | None = None) -> str:
    """Return the address of a page of a Determined master: of an experiment, or the first."""
    return f"{url}/det/" + ("" if experiment_id is None else f"experiments/{experiment_id}")


def page_hint(session: Session, experiment_id: int) -> str:
    """Return the address of an experiment's page, and for our master how to log in there."""
    if session.api.accounts.is_determined():
        return determined_page(session.url, experiment_id)
    return f"{session.url}/experiments/{experiment_id} (`det web {experiment_id}` logs a browser in)"
