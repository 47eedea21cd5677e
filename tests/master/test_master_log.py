"""The master's own log as a stream."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def lines(world):
    def read(**params):
        headers = {"Authorization": f"Bearer {world.client.token}"}
        text = world.http.get("/api/v1/master/logs", headers=headers, params=params).text
        return [json.loads(line)["result"]["logEntry"] for line in text.splitlines()]

    world.home.master_log.write_text(
        "2026-01-02 03:04:05,678 INFO: [1] det_keras: one\n"
        "2026-01-02 03:04:06,000 ERROR: [1] det_keras: two\n"
        "Traceback\n"
        "half a li"
    )
    return read


def test_lines_come_with_their_levels_and_only_whole(lines):
    assert [(one["id"], one["level"]) for one in lines()] == [
        (1, "LOG_LEVEL_INFO"),
        (2, "LOG_LEVEL_ERROR"),
        (3, "LOG_LEVEL_UNSPECIFIED"),
    ]
    assert lines()[0]["timestamp"].endswith(":05.678000Z")


def test_part_of_it_is_read_from_either_end(lines):
    assert [one["id"] for one in lines(offset=-1)] == [3]
    assert [one["id"] for one in lines(offset=1, limit=1)] == [2]
    assert lines(offset=9) == []


def test_no_log_is_an_empty_stream(world, lines):
    world.home.master_log.unlink()
    assert lines() == []
