"""``python containers.py PROGRAM ARG...``: run a task as a cluster does, once in each of its containers.

Each container has its own info files, its own address, the storage at `/determined_shared_fs` instead of its path on
the machine, and only those variables that the cluster sets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from det_keras.master.resources import mount_view

_OWN_VARIABLES = ("DET_KERAS_HOME", "DET_TASK_CONFIG")
_MOUNT = "determined_shared_fs"
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_NOSUID, _MS_NODEV = 0x1000, 0x4000, 0x80000, 0x2, 0x4


def main(argv: list[str]) -> int:
    """Run the program in all containers; return the first exit code that is not 0."""
    slots = json.loads(os.environ["DET_SLOT_IDS"])
    most = int(os.environ["DOUBLE_SLOTS_PER_AGENT"])
    parts = [slots[first : first + most] for first in range(0, len(slots), most)] or [[]]
    counts = [len(part) for part in parts]
    addresses = [f"127.0.0.{2 + rank}" for rank in range(len(parts))]
    children = [_start(argv, rank, part, addresses, counts) for rank, part in enumerate(parts)]
    code = 0
    while children:
        pid, status = os.wait()
        if pid not in children:
            continue
        children.remove(pid)
        ended = os.waitstatus_to_exitcode(status)
        if ended != 0 and code == 0:
            code = 128 - ended if ended < 0 else ended
            # The cluster kills the other containers of the allocation.
            for other in children:
                os.kill(other, signal.SIGKILL)
    return code


def _start(argv: list[str], rank: int, slots: list[int], addresses: list[str], counts: list[int]) -> int:
    child = os.fork()
    if child == 0:
        try:
            _enter(rank, slots, addresses, counts)
            os.execvp(argv[0], argv)
        except BaseException as error:
            sys.stderr.write(f"This container cannot be made: {error!r}\n")
        os._exit(125)
    return child


def _enter(rank: int, slots: list[int], addresses: list[str], counts: list[int]) -> None:
    environ = os.environ
    environ["DET_SLOT_IDS"] = json.dumps(slots)
    environ["DET_AGENT_ID"] = f"agent{rank}"
    environ["DET_RESOURCES_TYPE"] = "docker-container"
    # The package is installed in the image; the tests are not.
    root, tests = (str(Path(__file__).parents[up]) for up in (2, 1))
    given = [
        path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", root, tests)
    ]
    environ["PYTHONPATH"] = os.pathsep.join([*given, root])
    files = mount_view.info_files(environ)
    if "rendezvous.json" in files:
        files["rendezvous.json"] = {
            "container_addrs": addresses,
            "container_rank": rank,
            "container_slot_counts": counts,
        }
    storage = json.loads(environ.get("DET_EXPERIMENT_CONFIG", "{}")).get("checkpoint_storage", {})
    for name in _OWN_VARIABLES:
        environ.pop(name, None)
    if "GIVEN_TASK_CONFIG" in environ:
        environ["DET_TASK_CONFIG"] = environ.pop("GIVEN_TASK_CONFIG")
        environ["DET_TASK_TYPE"] = "GENERIC"
    own_home = Path(tempfile.mkdtemp(prefix="container-"))
    environ["HOME"] = str(own_home)
    if determined := environ.pop("DOUBLE_DETERMINED", ""):
        # An agent installs Determined's own package, with what it needs, behind what the image has.
        environ["PYTHONPATH"] += os.pathsep + determined
    _change_root(files, storage.get("host_path"))


def _change_root(files: dict[str, dict[str, object]], host_path: str | None) -> None:
    """Leave the machine's file system for a view of it with a storage mount, and with the info files."""
    stage, directory = Path(tempfile.mkdtemp(prefix="root-")), Path.cwd()
    mount_view._unshare()
    mount_view._mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
    mount_view._mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    for entry in Path("/").iterdir():
        # A machine of a cluster has a folder of this name too, which is not that of the container.
        if entry.name != _MOUNT:
            mount_view._show_in(stage, entry)
    if host_path is not None:
        mount = stage / _MOUNT
        # A task that ran outside a container may have left one on this machine.
        mount.mkdir(exist_ok=True)
        mount_view._mount(host_path, mount, None, _MS_BIND | _MS_REC)
        # `host_path` is a path of the machine only.
        mount_view._mount("tmpfs", Path(f"{stage}{host_path}"), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700")
    os.chroot(stage)
    os.chdir(directory)
    info = Path("/run/determined/info")
    try:
        info.mkdir(parents=True, exist_ok=True)
    except OSError:
        mount_view._rebuild_run()
        info.mkdir(parents=True, exist_ok=True)
    mount_view._mount("tmpfs", info, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700")
    for name, content in files.items():
        (info / name).write_text(json.dumps(content), encoding="utf-8")


def run() -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):
        # They reach the whole process group; this process only waits.
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
