"""Finds and removes what killed tasks left in the storages that a master knows.

These are the files of checkpoints that were not completed, and complete checkpoints that were never reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import AllocationRow, CheckpointRow, ExperimentRow, StorageRow
from det_keras.master.database.store import Store
from det_keras.master.wire import encode_json
from det_keras.protocol.origin import METADATA_NAME, allocation_in
from det_keras.protocol.values import now

# The token of an ended allocation is valid for another half a minute: a report may still be on its way.
_GRACE = timedelta(minutes=2)


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


def sweep(
    store: Store, sections: Sequence[Mapping[str, Any]], cluster_id: str, min_age_s: float, *, dry_run: bool
) -> Sweep:
    """Find what killed tasks left in storages, and remove it.

    Args:
        store: has the records of checkpoints.
        sections: the storages.
        cluster_id: of this master.
        min_age_s: see `Storage.find_orphans`.
        dry_run: only find it.
    """
    result = Sweep()
    for section in sections:
        with _noted(section, result):
            place = storage.from_config(section)
            for orphan in place.find_orphans(min_age_s):
                if not dry_run:
                    place.remove_orphan(orphan)
                result.orphans.append(orphan)
            _remove_unreported(store, place, cluster_id, result, dry_run=dry_run)
    return result


def remove_unreported(store: Store, sections: Sequence[Mapping[str, Any]], cluster_id: str) -> Sweep:
    """Find complete checkpoints that were never reported in storages, and remove them; see `unreported`."""
    result = Sweep()
    for section in sections:
        with _noted(section, result):
            place = storage.from_config(section)
            _remove_unreported(store, place, cluster_id, result, dry_run=False)
    return result


def unreported(store: Store, place: storage.Storage, cluster_id: str) -> list[storage.Orphan]:
    """Return complete checkpoints that an ended allocation of this master stored and never reported.

    Args:
        store: has the records of checkpoints.
        place: the storage.
        cluster_id: of this master. Checkpoints of other origins, or without one, are not touched.

    Raises:
        OSError: the storage cannot be read.
    """
    # Listed first: what is reported while the list is made is known then.
    stored = place.checkpoints()
    with store.reading() as session:
        known = set(session.scalars(select(CheckpointRow.uuid)))
        found = []
        for uuid in stored:
            if uuid in known:
                continue
            try:
                allocation_id = allocation_in(place.read_file(f"{uuid}/{METADATA_NAME}"), cluster_id)
            except (OSError, CheckpointError):
                # It has no metadata, or was deleted meanwhile.
                continue
            ended_at = session.scalar(
                select(AllocationRow.end_time).where(AllocationRow.id == (allocation_id or ""))
            )
            if ended_at is not None and now() - ended_at >= _GRACE:
                size_bytes = sum(place.list_files(uuid).values())
                age_s = (now() - ended_at).total_seconds()
                found.append(storage.Orphan(place.location(uuid), uuid, size_bytes, age_s))
    return found


def _remove_unreported(
    store: Store, place: storage.Storage, cluster_id: str, result: Sweep, *, dry_run: bool
) -> None:
    for orphan in unreported(store, place, cluster_id):
        if not dry_run:
            place.delete(orphan.uuid)
        result.orphans.append(orphan)


@contextmanager
def _noted(section: Mapping[str, Any], result: Sweep) -> Iterator[None]:
    """Add a failure of a storage to the problems."""
    try:
        yield
    except (OSError, ConfigError, CheckpointError) as error:
        result.problems.append(f"{section.get('type')}: {error}")


def _sections(session: Session) -> Iterator[dict[str, Any]]:
    yield from session.scalars(select(StorageRow.config))
    for experiment in session.scalars(select(ExperimentRow)):
        yield config_of(experiment).checkpoint_storage.to_dict()
