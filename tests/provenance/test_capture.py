"""Captures in the background: they never fail, and never grow too long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from det_keras.provenance.capture import MOST_RECORD_BYTES, Capture, is_enabled


def test_failed_capture_is_an_empty_record():
    assert Capture(lambda: 1 / 0).result(5.0) == {}


def test_slow_capture_does_not_hold_the_caller():
    release = threading.Event()
    capture = Capture(lambda: {"a": release.wait(10.0)})
    before = time.monotonic()
    assert capture.result(0.05) == {}
    assert time.monotonic() - before < 5.0
    release.set()
    assert capture.result(5.0) == {"a": True}


def test_record_is_passed_on_unless_it_is_empty():
    received = []
    Capture(lambda: {"a": 1}, then=received.append).result(5.0)
    Capture(dict, then=received.append).result(5.0)
    assert received == [{"a": 1}]


def test_names_that_are_not_text_can_be_sent():
    name = b"caf\xe9".decode(errors="surrogateescape")
    record = Capture(lambda: {"repository": {"untracked": [name]}}).result(5.0)
    json.dumps(record).encode()
    assert record["repository"]["untracked"] == ["caf?"]


@pytest.mark.parametrize(("key", "left"), [("repository", {"repository"}), ("packages", set())])
def test_record_that_no_master_accepts_is_shortened(key, left):
    long = "\0" * MOST_RECORD_BYTES
    record = Capture(lambda: {key: {"diff": long, "isCut": False}}).result(5.0)
    assert record.keys() == left
    if left:
        assert record["repository"] == {"diff": "", "isCut": True}


def test_it_can_be_turned_off():
    assert is_enabled({})
    assert not is_enabled({"DET_KERAS_PROVENANCE": "0"})


def test_import_of_what_starts_a_capture_is_light():
    code = (
        "import sys; import det_keras.provenance.capture;"
        "print(sorted({'yaml', 'subprocess', 'importlib.metadata', 'email'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
