"""`det workspace`, `det project` and `det experiment move` against a real master."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.process

CONFIG = "name: tiny\nentrypoint: 'true'\nsearcher: {name: single, metric: loss}\nworkspace: vision\nproject: digits\n"


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("const.yaml", CONFIG)
    cluster.write("plain.yaml", CONFIG.split("workspace")[0])
    return cluster


def test_a_team_sorts_its_experiments(det, tmp_path):
    missing = det("experiment", "create", "const.yaml", "--paused")
    assert (missing.returncode, "det workspace create 'vision'" in missing.stderr) == (1, True)
    det.out("workspace", "create", "vision")
    missing = det("experiment", "create", "const.yaml", "--paused")
    assert "det project create 'vision' 'digits'" in missing.stderr
    created = det.out("project", "create", "vision", "digits", "--description", "Handwriting")
    assert created.splitlines()[0] == "Created the project 'digits' (DIG)."
    number = det.out("experiment", "create", "const.yaml", "--paused").split("experiment ")[1].split()[0]
    other = det.out("experiment", "create", "plain.yaml", "--paused").split("experiment ")[1].split()[0]
    assert det.json("project", "describe", "vision", "digits")["experiments"][0]["id"] == int(number)
    assert det.out("experiment", "move", other, "vision", "digits") == (
        f"Moved experiment {other} to the project 'digits'.\n"
    )
    det.out("project", "note", "vision", "digits", "Baseline", "SGD reaches **0.97**.")
    shown = det.out("project", "describe", "vision", "digits")
    assert "Handwriting" in shown
    assert "SGD reaches" in shown
    assert [line.split()[0] for line in shown.splitlines()[-2:]] == [number, other]
    trials = json.loads(
        det.out("trial", "list", "--filter", "project:digits", "--columns", "project", "--json")
    )
    assert {trial["project"] for trial in trials} == {"digits"}
    table = det.out("workspace", "list").splitlines()
    assert table[-1].split() == ["2", "vision", "1", "2", "determined", "pinned"]

    refused = det("workspace", "delete", "vision", "--yes")
    assert (refused.returncode, f"have not ended: {number}, {other}" in refused.stderr) == (1, True)
    det.out("project", "archive", "vision", "digits")
    assert "archived" in det("experiment", "create", "const.yaml", "--paused").stderr
    det.out("project", "unarchive", "vision", "digits")
    for one in (number, other):
        det.out("experiment", "kill", one)
        det("experiment", "wait", one)
    assert "Nothing was deleted" in det("workspace", "delete", "vision").stderr
    assert det.out("workspace", "delete", "vision", "--yes").startswith(
        "The workspace 'vision' is being deleted"
    )


def test_names_that_do_not_exist_are_told_with_those_that_do(det):
    det.out("workspace", "create", "text")
    assert "Known ones: 'Uncategorized'" in det("project", "list", "speech").stderr
    assert "It has: none" in det("project", "describe", "text", "letters").stderr
    assert "Nothing to change" in det("workspace", "edit", "text").stderr
    det.out("project", "create", "text", "letters")
    det.out("project", "edit", "text", "letters", "--new-name", "words", "--key", "WRD")
    assert [one["key"] for one in det.json("project", "list", "text")] == ["WRD"]
    det.out("workspace", "create", "speech")
    det.out("project", "move", "text", "words", "speech")
    assert [one["name"] for one in det.json("workspace", "describe", "speech")["projects"]] == ["words"]
    det.out("project", "delete", "speech", "words", "--yes")
    assert det.out("workspace", "delete", "speech", "--yes") == "Deleted the workspace 'speech'.\n"


def test_storage_comes_from_a_file_and_goes_again(det, tmp_path):
    texts = {
        "json": '{"type": "directory", "container_path": "/tmp/json"}',
        "yaml": "type: directory\ncontainer_path: /tmp/yaml\n",
    }
    for name, text in texts.items():
        det.write(f"storage.{name}", text)
        made = det.json("workspace", "create", name, "--checkpoint-storage-config-file", f"storage.{name}")
        assert made["checkpointStorageConfig"]["container_path"] == f"/tmp/{name}"
    det.write("empty.yaml", "")
    det.out("workspace", "edit", "yaml", "--checkpoint-storage-config-file", "empty.yaml")
    assert det.json("workspace", "describe", "yaml")["checkpointStorageConfig"] is None
    assert (
        "cannot be read" in det("workspace", "create", "x", "--checkpoint-storage-config-file", "no").stderr
    )
