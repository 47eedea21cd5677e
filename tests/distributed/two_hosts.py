"""Two hosts on one machine: namespaces that only a pair of virtual network interfaces connects.

    unshare [--user --map-root-user] --net --uts --mount python3 two_hosts.py FOLDER COMMAND...

This process becomes the host ``first``. It makes ``second``, and runs the command on the first with an ``ssh`` on its
PATH that leads to the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ADDRESSES = {"first": "10.77.0.1", "second": "10.77.0.2"}
# Horovod looks for an interface of the same name on all hosts.
INTERFACE = "cable"
# What stands before the command is ssh's own: options, some with a value, and the host among them.
SSH = """#!/bin/sh
host=
while [ $# -gt 0 ]; do
    case "$1" in
        -o|-p|-i|-l) shift 2 ;;
        -*) shift ;;
        *) [ -n "$host" ] && break; host="$1"; shift ;;
    esac
done
exec nsenter --target "$SECOND_PID" --net --uts sh -c "$*"
"""


def main(folder: Path, command: list[str]) -> int:
    """Run a command on two hosts and return its exit code."""
    with subprocess.Popen(["unshare", "--net", "--uts", "sleep", "infinity"]) as second:
        try:
            name_hosts(folder / "hosts")
            connect(second.pid)
            (folder / "ssh").write_text(SSH)
            (folder / "ssh").chmod(0o755)
            path = f"{folder}{os.pathsep}{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "SECOND_PID": str(second.pid)}
            return subprocess.run(command, env=environment, check=False).returncode
        finally:
            second.kill()


def name_hosts(hosts: Path) -> None:
    """Let both hosts know both names."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
    hosts.write_text("\n".join(lines) + "\n")
    run("mount", "--bind", str(hosts), "/etc/hosts")


def connect(second: int) -> None:
    """Give both hosts their names and addresses, and connect them."""
    while Path(f"/proc/{second}/ns/uts").readlink() == Path("/proc/self/ns/uts").readlink():
        os.sched_yield()
    run(*f"ip link add {INTERFACE} type veth peer name {INTERFACE} netns {second}".split())
    inside = ["nsenter", "--target", str(second), "--net", "--uts"]
    for name, prefix in (("first", []), ("second", inside)):
        run(*prefix, "hostname", name)
        run(*prefix, *f"ip address add {ADDRESSES[name]}/24 dev {INTERFACE}".split())
        run(*prefix, *f"ip link set {INTERFACE} up".split())
        run(*prefix, "ip", "link", "set", "lo", "up")


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
