"""The description of all calls."""

from __future__ import annotations

import re

import pytest

from det_keras.master.web import site
from master.test_auth_middleware import every_route


@pytest.fixture
def described(client):
    return client.get("/openapi.json")


def test_every_call_is_described(world, described):
    known = {(verb.upper(), path) for path, verbs in described["paths"].items() for verb in verbs}
    served = {
        (verb, path.replace(":path}", "}"))
        for verb, path in set(every_route(world.http.app)) - set(every_route(site.router))
        if "{path:path}" not in path
    }
    assert served - known == {("GET", "/openapi.json")}


def test_bodies_are_described_by_their_fields(described):
    body = described["paths"]["/api/v1/experiments"]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = described["components"]["schemas"][name]
    assert schema["required"] == ["config"]
    assert "modelDefinition" in schema["properties"]


def test_every_reference_leads_somewhere(described):
    names = set(re.findall(r"#/components/schemas/([\w.]+)", str(described)))
    assert names <= set(described["components"]["schemas"])


def test_description_is_closed_to_strangers(world):
    assert world.http.get("/openapi.json").status_code == 401
