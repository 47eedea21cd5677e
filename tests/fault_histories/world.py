"""The data root of a history, and its master: started, killed, stopped and resumed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from forked_masters import MasterServer

from det_keras.client import Session
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.launch.importable import importable
from det_keras.launch.network import free_port
from det_keras.master import process
from det_keras.master.process import MasterOptions, RunningMaster
from fault_histories.disk import Disk
from fault_histories.plan import Plan
from fault_histories.proxy import Proxy

__all__ = ["World", "make_template"]

_START_S = 60.0
_LOOK_S = 0.01
# Keeps each event of a search, which the master deletes once it has stored the state after it, and each state of an
# experiment or a trial.
_RECORDER = """
CREATE TABLE history_events (number INTEGER PRIMARY KEY AUTOINCREMENT, experiment_id INTEGER, event TEXT);
CREATE TRIGGER history_of_search AFTER INSERT ON search_events
    BEGIN INSERT INTO history_events (experiment_id, event) VALUES (NEW.experiment_id, NEW.event); END;
CREATE TABLE history_states (number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, id INTEGER, before TEXT, after TEXT);
CREATE TRIGGER history_of_experiments AFTER UPDATE OF state ON experiments WHEN OLD.state <> NEW.state
    BEGIN INSERT INTO history_states (kind, id, before, after)
        VALUES ('experiment', NEW.id, OLD.state, NEW.state); END;
CREATE TRIGGER history_of_trials AFTER UPDATE OF state ON trials WHEN OLD.state <> NEW.state
    BEGIN INSERT INTO history_states (kind, id, before, after) VALUES ('trial', NEW.id, OLD.state, NEW.state); END;
"""


def make_template(folder: Path) -> Path:
    """Start a master once on a new data root, stop it, and return the root: migrating and hashing take a while."""
    home = Home(folder / "template").create()
    process.start(home, slots=1, options=MasterOptions(port=free_port("127.0.0.1"), db="sqlite"))
    process.stop(home)
    with sqlite3.connect(home.database) as connection:
        connection.executescript(_RECORDER)
    connection.close()
    return home.root


class World:
    """A data root with its master, proxy and disk.

    Args:
        folder: an empty folder of the history.
        template: a data root that saw its first start.
        plan: the history.
        masters: forks masters, with clocks that can be shifted.
    """

    def __init__(self, folder: Path, template: Path, plan: Plan, masters: MasterServer) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        mount = folder / "disk"
        mount.mkdir()
        self.disk = Disk(mount)
        self.home = Home((folder if plan.has_database_elsewhere else mount) / "root")
        shutil.copytree(template, self.home.root)
        self.home.root.chmod(0o700)
        if plan.has_database_elsewhere:
            for name in ("checkpoints", "logs", "work"):
                (mount / name).mkdir()
                (self.home.root / name).symlink_to(mount / name)
        self.proxy = Proxy(plan.answers)
        self.token = self.home.token_file.read_text()
        #: What was found wrong while the history ran.
        self.findings: list[str] = []
        self._clock = folder / "clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        self._offset_s = self._latest_offset_s = 0.0
        self._plan = plan
        self._masters = masters
        self._starts = 0
        self._pid: int | None = None
        self._lock = threading.RLock()

    def start(self) -> bool:
        """Start the master unless it runs; return whether it runs now. It fails on a full disk."""
        with self._lock:
            if self._pid is not None and _is_alive(self._pid):
                return True
            number, self._starts = self._starts, self._starts + 1
            port = free_port("127.0.0.1")
            running = self._start_plainly(port) if number in self._plan.plain_starts else self._fork(port)
            if running is None:
                return False
            self._pid, self.proxy.target = running.pid, urlsplit(running.url).port
            return True

    def kill(self) -> None:
        """Kill the master."""
        with self._lock:
            self.proxy.target = None
            if self._pid is not None:
                self.signal(signal.SIGKILL)
                _wait_for_end(self._pid)
                self._pid = None

    def signal(self, number: int) -> None:
        """Send the master a signal."""
        if self._pid is not None and _is_alive(self._pid):
            os.kill(self._pid, number)

    def start_forked(self) -> None:
        """Have a master whose clock can be shifted; one that was started by `process.start` is stopped."""
        if self._starts - 1 in self._plan.plain_starts:
            self.stop()
            while self._starts in self._plan.plain_starts:
                self._starts += 1
            self.start()

    def stop(self) -> None:
        """Stop the master as a user does."""
        with self._lock:
            process.stop(self.home)
            if self._pid is not None:
                _wait_for_end(self._pid)
            self._pid = self.proxy.target = None

    def shift_clock(self, seconds: float) -> None:
        """Let the wall clock of the master jump."""
        self._offset_s += seconds
        self._latest_offset_s = max(self._latest_offset_s, self._offset_s)
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", self._offset_s))

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass by the master's clock since the latest time that it ever had."""
        self.shift_clock(self._latest_offset_s - self._offset_s + seconds)

    def session(self, *, by_proxy: bool = True, token: str = "") -> Session:
        """Return a session of a user, which waits for the master as long as a history may take."""
        url = self.proxy.url if by_proxy else f"http://127.0.0.1:{self.proxy.target}"
        return Session(url, token or self.token, patience_s=60.0)

    def supervisors(self) -> list[psutil.Process]:
        """Return the running supervisors, in the order of their start."""
        found = []
        for lock in self.home.logs.glob("*/supervisor.lock"):
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                process = psutil.Process(int(lock.read_text()))
                # Another process may have the number by now.
                if Path(process.cwd()) == lock.parent:
                    found.append(process)
        return sorted(found, key=lambda supervisor: (supervisor.create_time(), supervisor.pid))

    def tasks(self) -> list[psutil.Process]:
        """Return the running processes of trials and jobs."""
        found = []
        for supervisor in self.supervisors():
            with contextlib.suppress(psutil.Error):
                folder = supervisor.cwd()
                # A supervisor's reaper is its fork, in the same directory.
                found += [child for child in supervisor.children() if child.cwd() != folder]
        return found

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes that belong to the data root."""
        mark = str(self.home.root).encode()
        for pid in psutil.pids():
            try:
                base = Path("/proc") / str(pid)
                told = (base / "cmdline").read_bytes(), (base / "environ").read_bytes()
                # A supervisor is a fork with nothing of its own but its directory.
                if any(mark in text for text in (*told, os.fsencode((base / "cwd").readlink()))):
                    found = psutil.Process(pid)
                    if found.pid != os.getpid() and found.status() != psutil.STATUS_ZOMBIE:
                        yield found
            except (OSError, psutil.Error):
                pass

    def close(self) -> None:
        """Kill what is left, and remove the disk."""
        self.proxy.close()
        self.kill()
        for left in list(self.processes()):
            left.kill()
        self.disk.close()

    def keep(self) -> Home:
        """Copy the data root out of its disk, for a closer look, and return the copy."""
        return Home(
            Path(shutil.copytree(self.home.root, self.folder / "home", ignore_dangling_symlinks=True))
        )

    def _variables(self) -> dict[str, str]:
        return {**importable(os.environ), "DET_KERAS_PROVENANCE": "0", "DET_KERAS_DB": "sqlite"}

    def _fork(self, port: int) -> RunningMaster | None:
        options = ("--port", str(port), "--slots", str(self._plan.slots), "--advertise", self.proxy.url)
        arguments = ("--home", str(self.home.root), *options)
        pid = self._masters.spawn(self.home, arguments, self._variables(), self._clock).pid
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and _is_alive(pid):
            running = process.find(self.home)
            if running is not None and running.pid == pid:
                return running
            time.sleep(_LOOK_S)
        if _is_alive(pid):
            self.findings.append(f"The master was not ready after {_START_S:g} s.")
        return None

    def _start_plainly(self, port: int) -> RunningMaster | None:
        options = MasterOptions(port=port, advertise=self.proxy.url, db="sqlite")
        try:
            return process.start(self.home, slots=self._plan.slots, options=options)
        except (DetError, OSError):
            return None


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 30.0
    while _is_alive(pid):
        assert time.monotonic() < deadline, f"Process {pid} does not end."
        time.sleep(0.002)
