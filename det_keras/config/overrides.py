"""Changes to a config from the command line: `searcher.max_trials=4`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.config.merge import replaced_fields
from det_keras.config.problems import Problems
from det_keras.config.searching.lengths import LENGTH_PATHS
from det_keras.config.yaml_text import ensure_tree, key_text, load_yaml, parse_scalar
from det_keras.errors import ConfigError


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `raw` with `overrides` applied in order.

    A value that starts with ``[`` or ``{`` is YAML. A value with a comma is a list of YAML scalars. Other values are
    YAML scalars. Missing or null mappings on the path are created. A length is one value: setting a unit of it replaces
    the length. Of two fields that exclude each other, setting one removes the other.

    Args:
        raw: the config as `load_yaml` returns it.
        overrides: each in the form `a.b.c=value`.

    Raises:
        ConfigError: an override without `=` or with an empty key, a value that is not YAML, a path through a value that
            is not a mapping, or one that may also be a key with dots in its name. The error has all problems.
    """
    result = copy.deepcopy(raw)
    problems = Problems()
    for override in overrides:
        with problems.collected():
            _apply(result, override)
    problems.raise_if_any()
    return result


def _apply(config: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError.at("", f"override {override!r} is invalid. Write it as `searcher.max_trials=4`.")
    value = _parse_value(text, override)
    if value is not None and ".".join(names[:-1]) in LENGTH_PATHS:
        # Replaces the whole length: the existing length may have another unit, or none.
        *names, unit = names
        value = {unit: value}
    target = config
    for index, name in enumerate(names[:-1]):
        _check_dots(target, names, index, override)
        name = _key_of(target, name)
        if target.get(name) is None:
            target[name] = {}
        below = target[name]
        if not isinstance(below, dict):
            raise ConfigError.at(
                ".".join(names[: index + 1]),
                f"is not a mapping, so override {override!r} cannot set a value in it.",
            )
        target = below
    if value is not None:
        for name in replaced_fields(".".join(names[:-1]), names[-1:]):
            target.pop(name, None)
    target[_key_of(target, names[-1])] = value


def _check_dots(mapping: Mapping[Any, Any], names: Sequence[str], index: int, override: str) -> None:
    """Check that the rest of a path is not the beginning of one whose keys have dots in their names."""
    keys = {key_text(key) for key in mapping}
    for end in range(index + 2, len(names) + 1):
        dotted = ".".join(names[index:end])
        if dotted in keys:
            raise ConfigError.at(
                ".".join(names[:index]),
                f"has a key {dotted!r}, so that override {override!r} may mean two things. Change it in the file.",
            )


def _key_of(mapping: Mapping[Any, Any], name: str) -> Any:
    """Return the key of `mapping` whose text is `name`, such as the number 1 for `1`; `name` if there is none."""
    return next((key for key in mapping if key_text(key) == name), name)


def _parse_value(text: str, override: str) -> Any:
    text = text.strip()
    if text.startswith(("[", "{")):
        value = load_yaml(f"value: {text}", source=f"override {override!r}")["value"]
        ensure_tree(value)
        return value
    if "," in text:
        return [parse_scalar(part.strip()) for part in text.split(",")]
    return parse_scalar(text)
