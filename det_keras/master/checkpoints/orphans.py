"""Finds and removes what unfinished checkpoints left in the storages that a master knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, StorageRow
from det_keras.master.wire import encode_json

__all__ = ["Sweep", "known_storages", "sweep"]


@dataclass
class Sweep:
    """The result of a search for orphans.

    Attributes:
        orphans: what was found.
        problems: storages that could not be read or written, with the reason.
    """

    orphans: list[storage.Orphan] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def known_storages(session: Session, default: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the different `checkpoint_storage` sections of all experiments and reports.

    Args:
        session: to read with.
        default: the section of configs that have none.
    """
    places = {}
    for section in (dict(default), *_sections(session)):
        place = {name: value for name, value in section.items() if not name.startswith("save_")}
        places[encode_json(dict(sorted(place.items())))] = place
    return list(places.values())


def sweep(sections: list[dict[str, Any]], min_age_s: float, *, dry_run: bool) -> Sweep:
    """Find orphans in storages, and remove them.

    Args:
        sections: the storages.
        min_age_s: see `Storage.find_orphans`.
        dry_run: only find them.
    """
    result = Sweep()
    for section in sections:
        try:
            place = storage.from_config(section)
            for orphan in place.find_orphans(min_age_s):
                if not dry_run:
                    place.remove_orphan(orphan)
                result.orphans.append(orphan)
        except (OSError, ConfigError, CheckpointError) as error:
            result.problems.append(f"{section.get('type')}: {error}")
    return result


def _sections(session: Session) -> Iterator[dict[str, Any]]:
    yield from session.scalars(select(StorageRow.config))
    for experiment in session.scalars(select(ExperimentRow)):
        yield config_of(experiment).checkpoint_storage.to_dict()
