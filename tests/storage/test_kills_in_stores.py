"""Processes killed while they store or restore: the newest checkpoint stays whole, and nothing else remains."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from uuid import uuid4

import pytest
from amount import AMOUNT

#: For each of the three kinds of store.
KILLS = {"few": 2, "usual": 4, "all": 17}[AMOUNT]
_LONGEST_S = 1.0

CHILD = """
import json, os, sys
from uuid import uuid4
from det_keras import storage
store = storage.from_config(json.loads(sys.argv[1]))
store.exists(str(uuid4()))
print("ready", flush=True)
while True:
    uuid = str(uuid4())
    with store.store_streams(uuid) as target:
        for name in ("first", "second"):
            with target.open(name) as file:
                file.write(os.urandom(40 << 20))
    print(uuid, flush=True)
    print("restoring", flush=True)
    with store.restore_path(uuid):
        pass
"""


def run_and_kill(section, after_s):
    """Run the child, kill it after a time, and return the checkpoints that it said it had stored."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(section)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(after_s)
    child.kill()
    said = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    return [line for line in said if line != "restoring"], said[-1:] == ["restoring"]


def put(store):
    uuid = str(uuid4())
    with store.store_path(uuid) as directory:
        (directory / "file").write_bytes(b"content")
    return uuid


@pytest.mark.process
@pytest.mark.kill
def test_killed_at_drawn_moments(bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    drawn, store, in_restores = random.Random(bucket.server.kind), bucket.store(), 0
    reported: list[str] = []
    for _ in range(KILLS):
        said, is_restoring = run_and_kill(bucket.section(), drawn.uniform(0.0, _LONGEST_S))
        in_restores += is_restoring
        reported += said
        # Of all that was reported the newest is whole.
        for uuid in reported[-1:]:
            with store.restore_path(uuid) as directory:
                assert (directory / "second").stat().st_size == 40 << 20
    # The orphans are those of this machine's dead processes: no age is needed.
    for orphan in store.find_orphans(3600.0):
        store.remove_orphan(orphan)
    assert store.find_orphans(0.0) == []
    assert_clean(bucket, store, reported)
    assert list(tmp_path.iterdir()) == []


def assert_clean(bucket, store, reported):
    """Check that every object belongs to a whole checkpoint, and that nothing reported is lost."""
    uuids = {name.split("/")[0] for name in bucket.objects()}
    assert set(reported) <= uuids
    for uuid in uuids:
        with store.restore_path(uuid):
            pass
    assert bucket.unfinished() == []


@pytest.mark.process
@pytest.mark.kill
def test_next_run_removes_what_a_killed_upload_left(bucket):
    code = CHILD.replace("print(uuid, flush=True)", "os.kill(os.getpid(), 9)").replace(
        "with target.open(name) as file:\n                file.write(os.urandom(40 << 20))",
        "file = target.open(name)\n            file.write(os.urandom(40 << 20))\n"
        "            list(map(lambda future: future.result(), target._sending))\n"
        '            if name == "second": os.kill(os.getpid(), 9)',
    )
    subprocess.run(
        [sys.executable, "-c", code, json.dumps(bucket.section())], check=False, stdout=subprocess.DEVNULL
    )
    left = bucket.objects()
    assert any(name.startswith(".uploads/") for name in left)
    assert bucket.server.kind == "gcs" or len(bucket.unfinished()) == 2
    code = "import json, sys\nfrom uuid import uuid4\nfrom det_keras import storage\n" + (
        "store = storage.from_config(json.loads(sys.argv[1]))\nwith store.store_path(str(uuid4())) as d: pass\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, json.dumps(bucket.section())], check=True, env=dict(os.environ)
    )
    assert [name.split("/")[1] for name in bucket.objects()] == ["manifest.json"]
    assert bucket.unfinished() == []
