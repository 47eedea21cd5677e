"""The model of a trial as its page draws it, whatever a client has sent."""

from __future__ import annotations

import html
import json
import re

import pytest

from det_keras.master.web.provenance import model as shown
from det_keras.master.web.provenance.model import shown_model
from master.test_web_pages import EVIL, page


def layer(name, *inputs, **changes):
    entry = {
        "name": name,
        "class": "Dense",
        "shapes": [[None, 3]],
        "dtype": "float32",
        "trainable": 12,
        "frozen": 0,
        "inputs": list(inputs),
    }
    return {**entry, **changes}


MODEL = {
    "name": "m",
    "class": "Functional",
    "kind": "functional",
    "trainable": 24,
    "frozen": 0,
    "bytes": 96,
    "count": 3,
    "isCut": False,
    "layers": [
        layer("a"),
        {**layer("block", 0), "kind": "sequential", "layers": [layer("inner")]},
    ],
}


def report(world, record):
    trial = world.client.trials(world.client.create())[0]["id"]
    world.client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": record})
    return trial


def source_of(world, trial):
    found = re.search(
        r'<span id="model-source" data-live hidden>(.*?)</span>', page(world, f"/trials/{trial}").text
    )
    return html.unescape(found[1])


def test_page_names_the_drawing_and_another_one_for_another_model(world):
    trial = world.client.trials(world.client.create())[0]["id"]
    assert source_of(world, trial) == ""
    sources = []
    for name in ("m", "n", "m"):
        record = {"model": {**MODEL, "name": name}}
        world.client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": record})
        sources.append(source_of(world, trial))
        assert page(world, sources[-1]).json() == record
    assert sources[0] == sources[2] != sources[1]
    # Where it runs changes nothing.
    world.client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": {"host": "h"}})
    assert source_of(world, trial) == sources[0]


def test_trial_without_a_model_has_no_drawing(world):
    trial = report(world, {"host": "h"})
    assert page(world, f"/figures/model?trial={trial}").json() == {"model": None}


@pytest.mark.parametrize(
    "value", [5, -1, 1.5, 1e300, "text", ["list"], {"a": 1}, None, True, EVIL, [EVIL], [[]]], ids=repr
)
def test_values_of_any_type_become_those_that_are_expected(world, value):
    records = [
        dict.fromkeys(MODEL, value),
        {**MODEL, "layers": [dict.fromkeys([*layer("a"), "kind", "layers"], value), layer("b")]},
        {**MODEL, "layers": [layer("a"), value]},
        {**MODEL, "layers": [layer("a", shapes=[value, [value]], inputs=[value])]},
    ]
    for record in records:
        trial = report(world, {"model": record})
        assert "<script>alert" not in page(world, f"/trials/{trial}").text
        found = page(world, source_of(world, trial)).json()["model"]
        check(found)


def check(found, *, is_model=True):
    """Check the types of all values of a model or a layer."""
    assert all(isinstance(found[key], str) for key in ("name", "class"))
    for key in ("trainable", "frozen", *(["bytes", "count"] if is_model else [])):
        assert found[key] is None or (type(found[key]) is int and found[key] >= 0)
    if "layers" in found:
        assert found["kind"] in ("sequential", "functional", "layers", "models")
    for entry in found.get("layers", []):
        assert all(type(index) is int and index < len(found["layers"]) for index in entry["inputs"])
        sizes = [size for shape in entry["shapes"] for size in shape]
        assert all(size is None or (type(size) is int and size >= 0) for size in sizes)
        check(entry, is_model=False)


def depth_of(found):
    return 1 + max((depth_of(entry) for entry in found.get("layers", [])), default=0)


def count_of(found):
    return sum(1 + count_of(entry) for entry in found.get("layers", []))


def test_forged_record_is_bounded():
    deep = layer("deep")
    for _ in range(100):
        deep = layer("deep", layers=[deep])
    found = shown_model({"model": {**MODEL, "layers": [deep]}})
    assert found["isCut"]
    assert depth_of(found) <= shown._MOST_DEPTH + 2
    wide = [layer("n" * 500, *range(2500)) for _ in range(2500)]
    found = shown_model({"model": {**MODEL, "layers": [layer("in"), {"layers": wide}]}})
    assert found["isCut"]
    assert count_of(found) == shown._MOST_LAYERS
    inner = found["layers"][1]["layers"]
    assert len(inner[0]["name"]) == shown._MOST_NAME
    assert sum(len(entry["inputs"]) for entry in inner) <= shown._MOST_CONNECTIONS
    assert json.dumps(found)


def test_connections_of_a_forged_record_lead_to_its_layers():
    layers = [layer("a", 0, 0, 1, 2, -1, True, 99), "no layer", layer("c", 1)]
    found = shown_model({"model": {**MODEL, "layers": layers}})
    assert [entry["inputs"] for entry in found["layers"]] == [[0, 1, 2], [], [1]]
    assert found["layers"][1]["name"] == ""
