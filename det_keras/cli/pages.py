"""The addresses of the masters' pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from det_keras.client import Session


def determined_page(url: str, experiment_id: int | None = None) -> str:
    """Return the address of a page of a Determined master: of an experiment, or the first."""
    return f"{url}/det/" + ("" if experiment_id is None else f"experiments/{experiment_id}")


def page_hint(session: Session, experiment_id: int) -> str:
    """Return the address of an experiment's page, and for our master how to log in there."""
    if session.api.accounts.is_determined():
        return determined_page(session.url, experiment_id)
    return f"{session.url}/experiments/{experiment_id} (`det web {experiment_id}` logs a browser in)"
