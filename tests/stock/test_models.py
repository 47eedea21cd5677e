"""The original client's commands and SDK about the model registry."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.process, pytest.mark.stock]


@pytest.fixture
def checkpoints(stock, done_experiment):
    """The checkpoints of an experiment at 10 and 20 steps."""
    rows = stock.table("experiment", "list-checkpoints", str(done_experiment))
    return [row["UUID"] for row in sorted(rows, key=lambda row: int(row["# of Batches"]))]


def test_sdk_makes_describes_and_deletes_models(stock, checkpoints):
    first, second = checkpoints[:2]
    found = stock.sdk(
        f"""
import warnings
from determined.experimental import Determined
d = Determined()
warnings.simplefilter("ignore")
model = d.create_model("mnist", "simple", labels=["a", "b"])
result = {{"new": [model.metadata, model.username, model.archived, model.workspace_id]}}
try:
    d.create_model("mnist", "again")
except Exception as error:
    result["again"] = type(error).__name__
model.add_metadata({{"testing": "metadata"}})
model.add_metadata({{"some_key": "some_value", "testing": "override"}})
model.remove_metadata(["some_key"])
model.set_labels(["hello", "world"])
model.set_description("abcde")
seen = d.get_model(model.model_id)
result["changed"] = [seen.name, seen.metadata, seen.labels, seen.description]
model.set_labels([])
result["emptied"] = d.get_model("mnist").labels
model.archive()
result["archived"] = d.get_model("mnist").archived
model.unarchive()
result["none"] = model.get_version() is None
version = model.register_version({first!r})
result["first"] = [version.model_version, version.checkpoint.uuid]
version.set_name("Test 2021")
version.set_notes("# Hello Markdown")
newest = model.get_version()
result["described"] = [newest.name, newest.notes, newest.model_version]
model.register_version({second!r})
result["versions"] = [[one.model_version, one.checkpoint.uuid] for one in model.get_versions()]
result["by number"] = model.get_version(1).checkpoint.uuid
model.get_version().delete()
result["left"] = [one.model_version for one in model.list_versions()]
other = d.create_model("transformer", "attention", labels=["world", "test", "zebra"])
third = d.create_model("ac - Dc", "a test name")
model.set_labels(["hello", "world"])
result["names"] = [one.name for one in d.get_models(sort_by=client.ModelSortBy.NAME)]
result["labels"] = d.get_model_labels()
result["metrics"] = list(model.get_version(1).iter_metrics())
for one in (model, other, third):
    one.delete()
result["gone"] = [one.name for one in d.list_models()]
"""
    )
    assert found == {
        "new": [{}, "determined", False, 1],
        "again": "APIException",
        "changed": ["mnist", {"testing": "override"}, ["hello", "world"], "abcde"],
        "emptied": [],
        "archived": True,
        "none": True,
        "first": [1, first],
        "described": ["Test 2021", "# Hello Markdown", 1],
        "versions": [[2, second], [1, first]],
        "by number": first,
        "left": [1],
        "names": ["ac - Dc", "mnist", "transformer"],
        "labels": ["world", "hello", "test", "zebra"],
        "metrics": [],
        "gone": [],
    }


def test_commands_make_register_move_and_delete(stock, checkpoints):
    stock.out("model", "create", "letters", "--description", "Handwriting")
    assert [row["Name"] for row in stock.table("model", "list")] == ["letters"]
    stock.out("model", "register-version", "letters", checkpoints[0])
    described = stock.out("model", "describe", "letters")
    assert checkpoints[0] in described
    assert "Handwriting" in described
    listed = json.loads(stock.out("model", "list-versions", "letters", "--json"))
    assert [one["version"] for one in listed["modelVersions"]] == [1]
    stock.out("workspace", "create", "registry")
    stock.out("model", "create", "numbers", "-w", "registry")
    stock.out("model", "move", "letters", "-w", "registry")
    names = [row["Name"] for row in stock.table("model", "list", "-w", "registry")]
    assert sorted(names) == ["letters", "numbers"]
    assert "in the registry" in stock.refused("checkpoint", "delete", checkpoints[0], "--yes")
    for name in ("letters", "numbers"):
        stock.out("model", "delete", name)
    stock.out("workspace", "delete", "registry", "--yes")
    assert "not found" in stock.refused("model", "describe", "letters")
