"""Trains on two workers of one host, while others try the ports that this opens.

    python3 doors.py FOLDER ENGINE

Runs on the first of the hosts of two_hosts.py, as root. Prints what was open and who reached it, as JSON.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - the other account could not import it when it connects
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import two_hosts

NOBODY = 65534
SCENARIOS = Path(__file__).parent / "scenarios.py"


def main(folder: Path, engine: str) -> None:
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--engine", engine, "--"]
    command += [sys.executable, str(SCENARIOS), str(folder), "relay"]
    environment = {**os.environ, "RELAY_SLOWLY": "1"}
    with (folder / "output").open("wb") as output:
        training = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        seen: set[tuple[str, int]] = set()
        while not list(folder.glob("relay/run/checkpoints/[!.]*/manifest.json")):
            if training.poll() is not None:
                raise SystemExit((folder / "output").read_text())
            # Some listen only for the moment in which the ranks connect.
            seen |= listening(training.pid)
        seen |= listening(training.pid)
        addresses = ("127.0.0.1", two_hosts.ADDRESSES["first"])
        doors = [(address, port) for port in {port for _, port in seen} for address in addresses]
        found = {
            "seen": sorted(seen),
            "account": as_nobody(doors),
            "host": elsewhere(doors),
            "output": (folder / "output").read_text(),
        }
    finally:
        training.kill()
        training.wait()
    print("FOUND", json.dumps(found))


def listening(launcher: int) -> set[tuple[str, int]]:
    """Return where the processes of a job listen."""
    found = set()
    parent = psutil.Process(launcher)
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    found.add((one.laddr.ip, one.laddr.port))
    return found


def as_nobody(doors: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return what another account reaches. It is forked: the account may not read the files of this one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(writing, json.dumps(reachable(doors)).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return json.load(answer)


def elsewhere(doors: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return what the second host reaches."""
    probe = shlex.join([sys.executable, __file__, "--probe", json.dumps(list(doors))])
    return json.loads(subprocess.run(["ssh", "second", probe], check=True, capture_output=True).stdout)


def reachable(doors: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return where something answers, or waits for more."""
    found = []
    for door in doors:
        with contextlib.suppress(OSError), socket.create_connection(door, timeout=2) as connection:
            connection.sendall(b"GET /global/0 HTTP/1.0\r\n\r\n")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    continue
            found.append(door)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--probe":
        print(json.dumps(reachable(map(tuple, json.loads(sys.argv[2])))))
    else:
        main(Path(sys.argv[1]), sys.argv[2])
