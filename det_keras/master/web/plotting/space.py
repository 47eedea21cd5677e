"""The space of an experiment's hyperparameters, as far as plots need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SCALES = {"log": "log", "double": "linear", "int": "linear", "categorical": "category"}


def scales(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the scale of each hyperparameter that is searched, by flat names: ``log``, ``linear`` or ``category``.

    Args:
        hyperparameters: the section of the config.
    """
    return dict(_scales(hyperparameters, ""))


def _scales(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if not isinstance(value, Mapping):
            continue
        kind = value.get("type")
        if not isinstance(kind, str):
            yield from _scales(value, f"{prefix}{name}.")
        elif kind in _SCALES:
            # Numbers among the choices keep a number's axis.
            numbers = kind == "categorical" and all(
                isinstance(one, int | float) for one in value.get("vals", ())
            )
            if not numbers:
                yield f"{prefix}{name}", _SCALES[kind]
