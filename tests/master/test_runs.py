"""Searches of runs and experiments in Determined's form, and what is done with many runs in one call."""

from __future__ import annotations

import json

import pytest

from master.fakes import SINGLE, FakePool, eventually

GRID = (
    "entrypoint: a\nname: grid\nlabels: [wide]\nhyperparameters: {x: {type: categorical, vals: [1, 2]}, y: z}\n"
    "searcher: {name: grid, metric: loss}\n"
)


@pytest.fixture
def world(make_world):
    return make_world(FakePool(8))


def field(name, operator, value=None, **more):
    return {"kind": "field", "columnName": name, "operator": operator, "value": value, **more}


def hparam(name, operator, value=None):
    return field(name, operator, value, location="LOCATION_TYPE_RUN_HYPERPARAMETERS")


def group(*children, conjunction="and"):
    return {"kind": "group", "conjunction": conjunction, "children": list(children)}


def text(*children, archived=False, conjunction="and"):
    return json.dumps({"filterGroup": group(*children, conjunction=conjunction), "showArchived": archived})


def search(world, *children, path="runs", sort="", **more):
    body = {"filter": text(*children) if children else "", "sort": sort, **more}
    return world.client.post(f"/api/v1/{path}", body)


def ids(answer):
    return [run["id"] for run in answer["runs"]]


def act(world, verb, **fields):
    answer = world.client.post(f"/api/v1/runs/{verb}", fields)
    return {result["id"]: result["error"] for result in answer["results"]}


@pytest.fixture
def runs(world):
    """A single trial of experiment 1, and two of a search: the numbers of the experiments and of the trials."""
    single, trial, _ = world.launch(SINGLE + "name: alone\ndescription: first\n")
    grid = world.client.create(GRID)
    one, two = sorted(world.client.trials(grid), key=lambda trial: trial["hparams"]["x"])
    for each, loss in ((trial, 3.0), (one, 2.0), (two, 1.0)):
        world.wait_for_launch(each)
        world.client.report(each["id"], "validation", 1, {"loss": loss})
    eventually(lambda: all(world.client.trial(each["id"])["bestValidation"] for each in (trial, one, two)))
    return single, grid, trial["id"], one["id"], two["id"]


def test_runs_are_found_by_their_values(world, runs):
    _single, grid, alone, one, two = runs
    assert ids(search(world)) == [max(one, two), min(one, two), alone]
    for condition, found in (
        (field("experimentId", "=", grid), {one, two}),
        (field("experimentId", "!=", grid), {alone}),
        (field("experimentId", ">=", grid), {one, two}),
        (field("id", "=", alone), {alone}),
        (field("experimentName", "contains", "RI"), {one, two}),
        (field("experimentName", "notContains", "ri"), {alone}),
        (field("experimentDescription", "isEmpty"), {one, two}),
        (field("experimentDescription", "notEmpty"), {alone}),
        (field("tags", "contains", "wide"), {one, two}),
        (field("tags", "isEmpty"), {alone}),
        (field("state", "=", "STATE_ACTIVE"), {alone, one, two}),
        (field("searcherMetricsVal", "<", 1.5), {two}),
        (field("validation.loss.last", "<=", 2, location="LOCATION_TYPE_VALIDATIONS"), {one, two}),
        (field("validation.loss.min", "=", 3, location="LOCATION_TYPE_VALIDATIONS"), {alone}),
        (field("user", "=", "determined"), {alone, one, two}),
        (field("isExpMultitrial", "=", True), {one, two}),
        (field("projectId", "=", 2), set()),
        (hparam("x", ">=", 2), {two}),
        (hparam("hp.x", "=", 1), {one}),
        (hparam("hp.y", "=", "z"), {one, two}),
        (hparam("hp.x", "isEmpty"), {alone}),
        (hparam("hp.never", ">", 2), set()),
        (group(field("id", "=", alone), hparam("x", "=", 2), conjunction="or"), {alone, two}),
        (group(group(field("experimentId", "=", grid)), hparam("x", "<", 2)), {one}),
        (group(), {alone, one, two}),
    ):
        assert set(ids(search(world, condition))) == found, condition


def test_runs_are_ordered_and_paged(world, runs):
    _single, _grid, alone, one, two = runs
    assert ids(search(world, sort="searcherMetricsVal=asc")) == [two, one, alone]
    assert ids(search(world, sort="experimentId=asc,hp.x=desc")) == [alone, two, one]
    first = search(world, sort="id=asc", limit=2)
    assert ids(first) == sorted([alone, one, two])[:2]
    assert first["pagination"]["total"] == 3
    assert ids(search(world, sort="id=asc", limit=2, offset=2)) == sorted([alone, one, two])[2:]
    assert ids(search(world, projectId=1)) == ids(search(world))
    assert ids(search(world, projectId=7)) == []


def test_run_has_what_clients_need(world, runs):
    single, _, alone, *_ = runs
    (run,) = search(world, field("id", "=", alone))["runs"]
    assert run["experiment"]["id"] == single
    assert (run["experiment"]["isMultitrial"], run["experiment"]["searcherType"]) == (False, "single")
    assert (run["state"], run["projectId"], run["workspaceName"]) == ("STATE_ACTIVE", 1, "Uncategorized")
    assert (run["searcherMetricValue"], run["archived"], run["parentArchived"]) == (3.0, False, False)


@pytest.mark.parametrize(
    ("filter_text", "sort", "named"),
    [
        ("nonsense", "", "JSON"),
        ("[]", "", "filterGroup"),
        ('{"filterGroup": 7}', "", "filterGroup"),
        (text(field("experimentNmae", "=", 1)), "", "experimentName"),
        (text(field("id", "~", 1)), "", "contains"),
        (text(conjunction="xor"), "", "conjunction"),
        (json.dumps({"filterGroup": {"kind": "group", "children": [7]}}), "", "groups and fields"),
        ("", "id", "startTime=desc"),
        ("", "idd=asc", "There is no column `idd`"),
    ],
)
def test_wrong_searches_are_told(world, runs, filter_text, sort, named):
    for path in ("runs", "experiments-search"):
        answer = world.client.post(f"/api/v1/{path}", {"filter": filter_text, "sort": sort}, status=400)
        assert (named if path == "runs" or "Name" not in named else "no column") in answer["error"]["error"]


def test_filter_that_is_nested_without_end_is_refused(world, runs):
    nested = '{"kind": "group", "children": [' * 5000 + "]}" * 5000
    world.client.post("/api/v1/runs", {"filter": f'{{"filterGroup": {nested}}}'}, status=400)


def test_runs_are_killed_by_number_and_by_filter(world, runs):
    _, grid, alone, one, two = runs
    condition = text(field("experimentId", "=", grid), hparam("x", ">=", 2))
    assert act(world, "kill", runIds=[], filter=condition, projectId=1) == {two: ""}
    eventually(lambda: world.client.trial(two)["state"] == "STATE_CANCELED")
    assert world.client.trial(one)["state"] != "STATE_CANCELED"
    assert act(world, "kill", runIds=[alone, alone, 99], projectId=1) == {
        alone: "",
        99: "trial '99' not found",
    }
    eventually(lambda: world.client.trial(alone)["state"] == "STATE_CANCELED")
    # Once more has no effect.
    assert act(world, "kill", runIds=[alone], projectId=1) == {alone: ""}
    assert "not found in project" in act(world, "kill", runIds=[one], projectId=7)[one]
    assert act(world, "stop", runIds=[one]) == {one: ""}
    eventually(lambda: world.client.trial(one)["state"] == "STATE_STOPPING_COMPLETED")


def test_single_run_is_paused_resumed_archived_and_deleted_and_one_of_a_search_is_not(world, runs):
    single, grid, alone, one, _ = runs
    many = f"Cannot pause/unpause run '{one}' (part of multi-trial)."
    assert act(world, "pause", runIds=[alone, one], projectId=1) == {alone: "", one: many}
    world.client.wait_for_state(single, "PAUSED")
    assert act(world, "resume", runIds=[alone, one], projectId=1) == {alone: "", one: many}
    assert ids(search(world, field("state", "=", "ACTIVE"), field("id", "=", alone))) == [alone]
    assert "incompatible state" in act(world, "archive", runIds=[alone], projectId=1)[alone]
    for number in (single, grid):
        world.client.move(number, "kill")
        world.client.wait_for_state(number, "CANCELED")
    assert act(world, "archive", runIds=[alone, one], projectId=1)[alone] == ""
    assert ids(search(world, field("id", "=", alone))) == []
    answer = world.client.post("/api/v1/runs", {"filter": text(field("id", "=", alone), archived=True)})
    assert ids(answer) == [alone]
    assert act(world, "unarchive", runIds=[alone], projectId=1) == {alone: ""}
    assert "part of multi-trial" in act(world, "delete", runIds=[one], projectId=1)[one]
    assert act(world, "delete", runIds=[alone], projectId=1) == {alone: ""}
    world.client.experiment(grid)
    eventually(
        lambda: [one["id"] for one in world.client.get("/api/v1/experiments")["experiments"]] == [grid]
    )


def test_runs_move_to_another_project(world, runs):
    _single, _grid, alone, one, _ = runs
    workspace = world.client.post("/api/v1/workspaces", {"name": "team"})["workspace"]["id"]
    body = {"name": "other", "workspaceId": workspace}
    project = world.client.post(f"/api/v1/workspaces/{workspace}/projects", body)["project"]["id"]
    fields = {"runIds": [alone, one], "sourceProjectId": 1, "destinationProjectId": project}
    skipped = f"Skipping run '{one}' (part of multi-trial)."
    assert act(world, "move", **fields, skipMultitrial=True) == {alone: "", one: skipped}
    assert [run["id"] for run in search(world, projectId=project)["runs"]] == [alone]
    assert act(world, "move", **{**fields, "runIds": [one]}) == {one: ""}
    assert len(search(world, projectId=project)["runs"]) == 3
    assert "no action 'fly'" in world.client.post("/api/v1/runs/fly", {}, status=400)["error"]["error"]


def test_experiments_are_searched(world, runs):
    single, grid, _, _, two = runs

    def found(*children, **more):
        answer = search(world, *children, path="experiments-search", **more)
        return [one["experiment"]["id"] for one in answer["experiments"]]

    assert found() == [grid, single]
    assert found(sort="id=asc") == [single, grid]
    assert found(field("name", "contains", "ri")) == [grid]
    assert found(field("numTrials", ">", 1)) == [grid]
    assert found(field("tags", "contains", "wide"), field("searcherType", "=", "grid")) == [grid]
    assert found(projectId=5) == []
    (one,) = search(world, field("id", "=", grid), path="experiments-search")["experiments"]
    assert one["bestTrial"]["id"] == two
    assert one["experiment"]["config"]["name"] == "grid"
    answer = world.client.get("/api/v1/experiments-search", params={"sort": "id=asc", "limit": 1})
    assert [one["experiment"]["id"] for one in answer["experiments"]] == [single]


def test_call_for_many_experiments_means_those_that_the_list_shows(world, runs):
    single, grid, *_ = runs
    for filters, found in (
        ({"name": "GRI"}, [grid]),
        ({"labels": ["wide"]}, [grid]),
        ({"states": ["STATE_ACTIVE"]}, [single, grid]),
        ({"states": ["STATE_RUNNING"], "excludedExperimentIds": [grid]}, [single]),
    ):
        params = {name: value for name, value in filters.items() if name != "excludedExperimentIds"}
        if "excludedExperimentIds" in filters:
            params["experimentIdFilter.notIn"] = filters["excludedExperimentIds"]
        listed = [one["id"] for one in world.client.get("/api/v1/experiments", params=params)["experiments"]]
        assert sorted(listed) == found
        answer = world.client.post(
            "/api/v1/projects/1/experiments/unarchive", {"filters": filters, "experimentIds": []}
        )
        assert [result["id"] for result in answer["results"]] == found


def test_project_0_is_any(world, runs):
    single, grid, *_ = runs
    answer = world.client.post("/api/v1/projects/0/experiments/pause", {"experimentIds": [single, grid]})
    assert [result["error"] for result in answer["results"]] == ["", ""]
    world.client.post("/api/v1/projects/7/experiments/pause", {"experimentIds": [single]}, status=404)
