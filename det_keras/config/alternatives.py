"""Fields that exclude each other: giving one of them replaces the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

# By section: groups of alternatives, of which a config has one.
_ALTERNATIVES: Mapping[str, tuple[tuple[frozenset[str], ...], ...]] = {
    "": ((frozenset({"entrypoint"}), frozenset({"entrypoint_script"})),),
    "searcher": (
        (frozenset({"max_length"}), frozenset({"time_metric", "max_time"})),
        (frozenset({"source_trial_id"}), frozenset({"source_checkpoint_uuid"})),
    ),
    "checkpoint_storage": ((frozenset({"connection_string"}), frozenset({"account_url", "credential"})),),
}


def replaced_fields(section: str, given: Collection[str]) -> set[str]:
    """Return the fields of `section` that a layer with the fields `given` replaces in lower layers."""
    return set(_replaced(section, given))


def _replaced(section: str, given: Collection[str]) -> Iterator[str]:
    for group in _ALTERNATIVES.get(section, ()):
        for side in group:
            if any(other & set(given) for other in group if other is not side):
                yield from side
