"""Judges an experiment's config by the schemas of Determined 0.38.1, which are no part of this project.

They are looked for beside the repository, or where DET_KERAS_TEST_ORACLE names a directory.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, ValidationError, validators
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

_PREFIX = "http://determined.ai/schemas/expconf/v0/"
_BESIDE = Path(__file__).parents[3] / "shared" / "oracle"
_ADAPTIVE = ("adaptive_asha", "async_halving")


def directory() -> Path | None:
    """Return the directory of the schemas; None if they are not on this machine."""
    root = Path(os.environ.get("DET_KERAS_TEST_ORACLE", _BESIDE)) / "expconf"
    return root if root.is_dir() else None


needs_schemas = pytest.mark.skipif(
    directory() is None,
    reason="the schemas of Determined 0.38.1 are not here; name their directory in DET_KERAS_TEST_ORACLE",
)


def problems(config: Mapping[str, Any], *, is_complete: bool = True) -> list[str]:
    """Return what a master of Determined 0.38.1 finds wrong with a config; nothing if it accepts it.

    Args:
        config: as read from YAML.
        is_complete: whether what is required after all defaults must be there as well.
    """
    found = [f"{error.json_path}: {error.message}" for error in _validator(is_complete).iter_errors(config)]
    searcher = config.get("searcher") or {}
    if is_complete and searcher.get("name") in _ADAPTIVE:
        # Its searchers are checked in code besides.
        found += [
            f"$.searcher: `{name}` is required"
            for name in ("max_time", "time_metric")
            if searcher.get(name) is None
        ]
    return found


@cache
def _validator(is_complete: bool) -> Any:
    root = directory()
    assert root is not None
    schemas = [json.loads(path.read_text()) for path in sorted(root.glob("*.json"))]
    for schema in schemas:
        # It would choose the plain validator again at each reference.
        schema.pop("$schema")
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema, default_specification=DRAFT7)) for schema in schemas
    )
    keywords = {
        "union": _union,
        "optionalRef": _optional_ref,
        "checks": _checks,
        "compareProperties": _compare,
        "disallowProperties": _disallow,
    }
    if is_complete:
        keywords |= {"eventuallyRequired": _required, "eventually": _all_of_it}
    kind = validators.extend(Draft7Validator, keywords)
    return kind({"$ref": f"{_PREFIX}experiment.json"}, registry=registry)


def _union(validator: Any, union: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    failures = {}
    for item in union["items"]:
        errors = list(validator.descend(instance, {k: v for k, v in item.items() if k != "unionKey"}))
        if not errors:
            return
        failures[item["unionKey"]] = errors
    # The alternative that is meant says what is wrong.
    for key, errors in failures.items():
        if _is_meant(key, instance):
            yield from errors
            return
    yield ValidationError(union.get("defaultMessage", "is none of the alternatives"))


def _is_meant(key: str, instance: Any) -> bool:
    if key.startswith("not:"):
        return not _is_meant(key[4:], instance)
    kind, _, argument = key.partition(":")
    if kind == "type":
        return isinstance(instance, {"array": list, "object": dict}[argument])
    if not isinstance(instance, dict):
        return kind == "always"
    if kind == "const":
        name, _, value = argument.partition("=")
        return instance.get(name) == value
    return {"always": True, "never": False}.get(
        kind, argument in instance and (kind == "hasattr" or len(instance) == 1)
    )


def _optional_ref(validator: Any, reference: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if instance is not None:
        yield from validator.descend(instance, {"$ref": reference})


def _checks(validator: Any, checks: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for message, check in checks.items():
        if list(validator.descend(instance, check)):
            yield ValidationError(message)


def _compare(validator: Any, compare: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    first, second = (_at(instance, compare[name]) for name in "ab")
    if first is None or second is None:
        return
    relation = compare["type"]
    if relation == "a<b":
        holds = first < second
    elif relation == "a<=b":
        holds = first <= second
    else:
        assert relation == "a_is_subdir_of_b"
        whole = posixpath.normpath(posixpath.join(second, first))
        holds = whole == posixpath.normpath(second) or whole.startswith(f"{second.rstrip('/')}/")
    if not holds:
        yield ValidationError(f"{compare['a']} and {compare['b']} are not {relation}")


def _at(instance: Any, path: str) -> Any:
    for name in path.split("."):
        instance = instance.get(name) if isinstance(instance, dict) else None
    return instance


def _disallow(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for name, message in names.items():
        if isinstance(instance, dict) and name in instance:
            yield ValidationError(message)


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for name in names:
        default = schema.get("properties", {}).get(name, {})
        has_default = isinstance(default, dict) and default.get("default") is not None
        if isinstance(instance, dict) and instance.get(name) is None and not has_default:
            yield ValidationError(f"{name!r} is required")


def _all_of_it(validator: Any, below: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    yield from validator.descend(instance, below)
