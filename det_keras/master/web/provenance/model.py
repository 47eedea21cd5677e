"""The layers of a trial's model as its page draws them. Clients send any values: what has another type is left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# As in `det_keras.keras.model_description`, which clients keep to.
_MOST_LAYERS, _MOST_DEPTH, _MOST_NAME = 2000, 12, 200
_MOST_SIZES = 16
#: Of all layers, in one drawing.
_MOST_CONNECTIONS = 20_000
_MOST_NUMBER = 1 << 53
_KINDS = ("sequential", "functional", "layers", "models")


def model_source(record: Mapping[str, Any] | None, trial_id: int) -> str:
    """Return the address of the drawing of a trial's model, which changes with the model; "" without one.

    Args:
        record: the trial's record of provenance.
        trial_id: number of the trial.
    """
    model = (record or {}).get("model")
    if not isinstance(model, Mapping):
        return ""
    digest = hashlib.sha256(json.dumps(model, sort_keys=True).encode()).hexdigest()
    return f"/figures/model?trial={trial_id}&of={digest[:16]}"


def shown_model(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the model of a record of provenance as plain values of the expected types; None if it has none.

    Returns:
        As `det_keras.keras.model_description.describe_models`; what a number or a text should be and is not is null or
        empty, and ``inputs`` are indices of layers of the same list.
    """
    model = (record or {}).get("model")
    if not isinstance(model, Mapping):
        return None
    reader = _Reader()
    layers = reader.layers(model.get("layers"), 0)
    return {
        "name": _text(model.get("name")),
        "class": _text(model.get("class")),
        "kind": _kind(model.get("kind")),
        "trainable": _number(model.get("trainable")),
        "frozen": _number(model.get("frozen")),
        "bytes": _number(model.get("bytes")),
        "count": max(_number(model.get("count")) or 0, reader.count),
        "isCut": model.get("isCut") is True or reader.is_cut,
        "layers": layers,
    }


class _Reader:
    """Reads layers, up to a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.is_cut = False
        self._connections = 0

    def layers(self, value: Any, depth: int) -> list[dict[str, Any]]:
        entries = value if isinstance(value, list) else []
        found = []
        for entry in entries:
            if self.count == _MOST_LAYERS:
                self.is_cut = True
                break
            self.count += 1
            # Others refer to it by its index: one that is no layer is shown without a name.
            found.append(self._layer(entry if isinstance(entry, Mapping) else {}, depth))
        for layer in found:
            layer["inputs"] = [index for index in layer["inputs"] if index < len(found)]
        return found

    def _layer(self, entry: Mapping[str, Any], depth: int) -> dict[str, Any]:
        layer = {
            "name": _text(entry.get("name")),
            "class": _text(entry.get("class")),
            "dtype": _text(entry.get("dtype")),
            "shapes": [_shape(shape) for shape in _list(entry.get("shapes"))],
            "trainable": _number(entry.get("trainable")),
            "frozen": _number(entry.get("frozen")),
            "inputs": self._inputs(entry.get("inputs")),
        }
        if not isinstance(entry.get("layers"), list):
            return layer
        if depth == _MOST_DEPTH:
            self.is_cut = True
            return layer
        return {
            **layer,
            "kind": _kind(entry.get("kind")),
            "layers": self.layers(entry["layers"], depth + 1),
        }

    def _inputs(self, value: Any) -> list[int]:
        indices = value if isinstance(value, list) else []
        distinct = list(dict.fromkeys(index for index in indices if _number(index) is not None))
        left = _MOST_CONNECTIONS - self._connections
        self.is_cut = self.is_cut or len(distinct) > left
        self._connections += min(len(distinct), left)
        return distinct[:left]


def _list(value: Any) -> list[Any]:
    return value[:_MOST_SIZES] if isinstance(value, list) else []


def _shape(value: Any) -> list[int | None]:
    return [_number(size) for size in _list(value)]


def _text(value: Any) -> str:
    return value[:_MOST_NAME] if isinstance(value, str) else ""


def _kind(value: Any) -> str:
    return value if isinstance(value, str) and value in _KINDS else "layers"


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < _MOST_NUMBER else None
