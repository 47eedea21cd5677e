"""`det master backup` and `restore`: a copy from which experiments continue."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import tarfile
import threading

import pytest
from cli.conftest import Det
from master.conftest import RealMaster
from master.fakes import eventually
from master.test_survival import submit, texts, wait_for_text

from database.server import assign
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master.archive import back_up, restore

pytestmark = pytest.mark.process

SCRIPT = """
print("run", RUN_ID, "from", os.environ["DET_STEPS_COMPLETED"])
if os.environ["DET_STEPS_COMPLETED"] == "0":
    checkpoint("11111111-2222-3333-4444-555555555555", 7)
    print("saved", flush=True)
    time.sleep(60)
report("validation", 8, loss=0.5)
"""


def test_experiment_continues_from_a_backup_that_was_taken_while_it_ran(own_home, tmp_path):
    root = own_home / "root"
    master = RealMaster(Home(root))
    experiment_id, trial = submit(master, SCRIPT)
    wait_for_text(master, trial, "saved")
    det = Det(root, tmp_path)
    printed = det.out("master", "backup", "backup.tar.gz")
    assert "Checkpoints are not in it" in printed
    assert stat.S_IMODE((tmp_path / "backup.tar.gz").stat().st_mode) == 0o600
    master.close()
    checkpoints = tmp_path / "checkpoints"
    (root / "checkpoints").rename(checkpoints)
    shutil.rmtree(root)

    det.out("master", "restore", "backup.tar.gz")
    assert not list(root.rglob("checkpoints"))
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    checkpoints.rename(root / "checkpoints")
    restored = RealMaster(Home(root))
    try:
        restored.client.wait_for_state(experiment_id, "COMPLETED", 30)
        assert texts(restored, trial) == ["run 1 from 0", "saved", "run 2 from 7"]
    finally:
        restored.close()


def test_backup_is_one_state_while_the_master_writes(own_home, tmp_path):
    master = RealMaster(Home(own_home))
    stop = threading.Event()
    step = 0

    def write() -> None:
        nonlocal step
        trial = master.client.trials(master.client.create(activate=False))[0]
        while not stop.is_set():
            step += 1
            master.client.report(trial["id"], "training", step, {"loss": float(step)}, run_id=0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            before = step
            eventually(lambda: step > before + 10)  # noqa: B023 - called in this round
            back_up(master.home, "sqlite", tmp_path / f"{number}.tar.gz")
    finally:
        stop.set()
        thread.join()
        master.close()
    seen = []
    for number in range(5):
        target = Home(tmp_path / f"home {number}")
        assert restore(target, tmp_path / f"{number}.tar.gz")
        with sqlite3.connect(target.database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            # A report and the trial's summary are one transaction.
            counted = connection.execute(
                "SELECT count(*), coalesce(max(total_batches), 0) FROM metrics"
            ).fetchone()
            known = connection.execute("SELECT total_batches FROM trials").fetchone() or (0,)
            assert counted == (known[0], known[0])
            seen.append(counted[0])
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_restore_refuses_a_used_data_root_and_files_that_are_no_backups(own_home, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"something")
    used = Home(tmp_path / "used").create()
    (used.root / "x").touch()
    with pytest.raises(DetError, match="not empty"):
        restore(used, file)
    with pytest.raises(DetError, match="not a complete backup"):
        restore(Home(tmp_path / "new"), file)
    with tarfile.open(file, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(DetError, match="outside"):
        restore(Home(tmp_path / "new"), file)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "outside").exists()


def test_truncated_backup_is_refused(own_home, tmp_path):
    RealMaster(Home(own_home)).close()
    file = tmp_path / "backup.tar.gz"
    back_up(Home(own_home), "sqlite", file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DetError, match="not a complete backup"):
        restore(Home(tmp_path / "new"), file)
    assert not (tmp_path / "new").exists()


def test_existing_file_is_not_overwritten(own_home, tmp_path):
    RealMaster(Home(own_home)).close()
    (tmp_path / "kept").write_text("kept")
    with pytest.raises(DetError, match="exists"):
        back_up(Home(own_home), "sqlite", tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "kept"


def test_of_postgresql_the_files_are_backed_up_and_pg_dump_the_rest(own_home, url, postgresql, tmp_path):
    root = own_home / "root"
    assign(Home(root), url)
    master = RealMaster(Home(root))
    experiment_id, trial = submit(master, "print('ran', RUN_ID)\n", activate=False)
    det = Det(root, tmp_path)
    name = postgresql.name_of(url)
    dump = tmp_path / "dump"
    postgresql.run_as_user("pg_dump", "-Fc", "-d", url, "-f", str(dump))
    printed = det.out("master", "backup", "backup.tar.gz")
    assert "pg_dump" in printed
    master.close()
    shutil.rmtree(root)
    postgresql.drop(name)
    postgresql.sql(f"CREATE DATABASE {name}")

    postgresql.run_as_user("pg_restore", "-d", url, str(dump))
    det.out("master", "restore", "backup.tar.gz")
    restored = RealMaster(Home(root))
    try:
        restored.client.move(experiment_id, "activate")
        restored.client.wait_for_state(experiment_id, "COMPLETED", 30)
        assert texts(restored, trial) == ["ran 1"]
        assert not Home(root).database.exists()
    finally:
        restored.close()
