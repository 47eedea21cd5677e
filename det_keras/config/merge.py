"""Merges the layers of a config: the user's, a template, the master's defaults, the built-in defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from det_keras.config.fields.checkpoint_storage import CheckpointStorage
from det_keras.config.fields.environment import DEVICES
from det_keras.config.searching.lengths import LENGTH_PATHS
from det_keras.config.searching.searcher import Searcher
from det_keras.config.section import TaggedSection
from det_keras.config.yaml_text import key_text


def merge_layers(higher: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Return `higher` completed with values of `lower`; null counts as absent.

    Mappings are merged key by key; other values are taken from `higher`. Some fields have other rules. Mounts, devices
    and environment variables are appended, log policies are merged by name, labels are united. Of a searcher or storage
    of another kind only the fields that all kinds have are merged. A hyperparameter is merged only if both are nested,
    a length never. Of two fields that
    exclude each other, such as `entrypoint` and `entrypoint_script`, the field in `higher` is kept. Values of a wrong
    type are not changed; the validation reports them.

    Args:
        higher: in the current spelling.
        lower: in the current spelling.
    """
    merged: dict[str, Any] = _merge_mappings(higher, lower, "")
    return merged


def _merge(higher: Any, lower: Any, path: str) -> Any:
    if higher is None or lower is None:
        return lower if higher is None else higher
    rule = _RULES.get(path)
    if rule is not None:
        return rule(higher, lower)
    if isinstance(higher, Mapping) and isinstance(lower, Mapping):
        return _merge_mappings(higher, lower, path)
    return higher


def _merge_mappings(higher: Mapping[str, Any], lower: Mapping[str, Any], path: str) -> dict[str, Any]:
    replaced = replaced_fields(path, [name for name in higher if higher[name] is not None])
    kept = {name: value for name, value in lower.items() if name not in replaced}

    def merge(name: Any, high: Any, low: Any) -> Any:
        return _merge(high, low, f"{path}.{name}" if path else str(name))

    return _join(higher, kept, merge)


def _join(
    higher: Mapping[Any, Any], lower: Mapping[Any, Any], merge: Callable[[Any, Any, Any], Any]
) -> dict[Any, Any]:
    """Return the items of both; for common keys `merge` is called with the key and both values."""
    # Keys are compared as text: a file may have the number 1 for the "1" of a stored config.
    below = {key_text(name): value for name, value in lower.items()}
    joined = {
        name: merge(name, value, below.pop(text)) if (text := key_text(name)) in below else value
        for name, value in higher.items()
    }
    return joined | {name: value for name, value in lower.items() if key_text(name) in below}


def _append_new_paths(higher: Any, lower: Any) -> Any:
    if not _are(list, higher, lower):
        return higher
    present = [_container_path(item) for item in higher]
    return [*higher, *(item for item in lower if _container_path(item) not in present)]


def _container_path(item: Any) -> Any:
    if isinstance(item, Mapping):
        return item.get("container_path")
    return item.split(":")[1] if isinstance(item, str) and ":" in item else item


def _append_variables(higher: Any, lower: Any) -> Any:
    if _are(list, higher, lower):
        return [*lower, *higher]
    high, low = _by_device(higher), _by_device(lower)
    if high is None or low is None:
        return higher
    return {device: [*(low.get(device) or ()), *(high.get(device) or ())] for device in {**low, **high}}


def _by_device(variables: Any) -> dict[str, Any] | None:
    if isinstance(variables, list):
        return dict.fromkeys(DEVICES, variables)
    is_mapping = isinstance(variables, Mapping)
    return dict(variables) if is_mapping and all(_is_list(item) for item in variables.values()) else None


def _is_list(value: Any) -> bool:
    return value is None or isinstance(value, list)


def _merge_policies(higher: Any, lower: Any) -> Any:
    if not _are(list, higher, lower):
        return higher
    # Lists, not sets: values that are not validated yet may not be hashable.
    names = [item["name"] for item in higher if isinstance(item, Mapping) and item.get("name") is not None]
    return [
        *higher,
        *(
            item
            for item in lower
            if item not in higher and not (isinstance(item, Mapping) and item.get("name") in names)
        ),
    ]


def _unite(higher: Any, lower: Any) -> Any:
    return (
        [*higher, *(label for label in lower if label not in higher)] if _are(list, higher, lower) else higher
    )


def _merge_tagged(path: str, section: type[TaggedSection]) -> Callable[[Any, Any], Any]:
    def merge(higher: Any, lower: Any) -> Any:
        if not isinstance(higher, Mapping) or not isinstance(lower, Mapping):
            return higher
        tags = {layer[section.tag] for layer in (higher, lower) if isinstance(layer.get(section.tag), str)}
        if len(tags) > 1:
            common = section.common_names()
            lower = {name: value for name, value in lower.items() if name in common}
        return _merge_mappings(higher, lower, path)

    return merge


def _merge_spaces(higher: Any, lower: Any) -> Any:
    if not _is_nested(higher) or not _is_nested(lower):
        return higher
    return _join(higher, lower, lambda _, high, low: _merge_spaces(high, low))


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and "type" not in value


def _take_higher(higher: Any, lower: Any) -> Any:
    return higher


def _are(kind: type, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


_RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    # Merging two lengths in different units would give one length with two units.
    **dict.fromkeys(LENGTH_PATHS, _take_higher),
    "bind_mounts": _append_new_paths,
    "checkpoint_storage": _merge_tagged("checkpoint_storage", CheckpointStorage),
    "environment.environment_variables": _append_variables,
    "hyperparameters": _merge_spaces,
    "labels": _unite,
    "log_policies": _merge_policies,
    "resources.devices": _append_new_paths,
    "searcher": _merge_tagged("searcher", Searcher),
}


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
