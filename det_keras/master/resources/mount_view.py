"""``python mount_view.py PROGRAM ARG...``: run a program that finds Determined's info files where it expects them.

The original `determined` package learns that it runs in a task from files at a fixed place,
``/run/determined/info``, and no variable names another. Tasks of one machine share its files, so each gets a view
of its own: a mount namespace in which a small file system lies at that place. Ordinary users may make one
where the kernel allows user namespaces. Where it does not, the program runs without the files, and then what it
needs to know is in its environment only: enough for `det_keras`, not for the original package.

A script of its own, with nothing but the standard library, that turns into the program: it costs a few
milliseconds and leaves no process behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["info_files", "main"]

_RUN = Path("/run")
_INFO = _RUN / "determined" / "info"

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_MOVE = 0x1000, 0x4000, 0x80000, 0x2000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_MNT_DETACH = 2
_CANNOT_EXECUTE = 127


def main(argv: list[str]) -> NoReturn:
    """Make the view if that is possible, and become the program `argv`."""
    # Forbidden by the kernel, or not started by a master: the program does without.
    with contextlib.suppress(OSError, KeyError, ValueError):
        _make_view()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"Could not start `{argv[0]}`: {error.strerror}.\n")
        sys.exit(_CANNOT_EXECUTE)


def info_files(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the info files, by name, of a task whose variables are `environ`."""
    slots = json.loads(environ["DET_SLOT_IDS"])
    files: dict[str, dict[str, Any]] = {
        "cluster.json": {
            "master_url": environ["DET_MASTER"],
            "cluster_id": environ["DET_CLUSTER_ID"],
            "agent_id": environ["DET_AGENT_ID"],
            "slot_ids": slots,
            "task_id": environ["DET_TASK_ID"],
            "allocation_id": environ["DET_ALLOCATION_ID"],
            "session_token": environ["DET_SESSION_TOKEN"],
            "task_type": environ["DET_TASK_TYPE"],
            "master_cert_name": environ.get("DET_MASTER_CERT_NAME"),
            "master_cert_file": environ.get("DET_MASTER_CERT_FILE"),
            "latest_checkpoint": environ.get("DET_LATEST_CHECKPOINT"),
        },
        "resources.json": {
            "gpu_uuids": [one for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        },
    }
    if environ["DET_TASK_TYPE"] == "TRIAL":
        config = json.loads(environ["DET_EXPERIMENT_CONFIG"])
        files["trial.json"] = {
            "trial_id": int(environ["DET_TRIAL_ID"]),
            "experiment_id": int(environ["DET_EXPERIMENT_ID"]),
            "trial_seed": int(environ["DET_TRIAL_SEED"]),
            "hparams": json.loads(environ["DET_HPARAMS"]),
            "config": config,
            "steps_completed": int(environ["DET_STEPS_COMPLETED"]),
            "trial_run_id": int(environ["DET_TRIAL_RUN_ID"]),
            "debug": bool(config.get("debug", False)),
            "inter_node_network_interface": environ.get("DET_INTER_NODE_NETWORK_INTERFACE"),
        }
        files["rendezvous.json"] = {
            "container_addrs": ["127.0.0.1"],
            "container_rank": 0,
            "container_slot_counts": [len(slots)],
        }
    return files


def _make_view() -> None:
    files = info_files(os.environ)
    _unshare()
    # What is mounted on the machine later is seen here too; what is mounted here is seen by nobody else.
    _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
    try:
        _INFO.mkdir(parents=True, exist_ok=True)
    except OSError:
        # An ordinary user cannot make the directory, so that `/run` itself becomes one of this view's own.
        _rebuild_run()
        _INFO.mkdir(parents=True, exist_ok=True)
    _mount("tmpfs", _INFO, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700")
    for name, content in files.items():
        path = _INFO / name
        path.write_text(json.dumps(content), encoding="utf-8")
        # The task's token is in one of them.
        path.chmod(0o600)


def _unshare() -> None:
    """Leave the machine's mount namespace, in a user namespace of our own where that needs one."""
    user, group = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError):
        _call("unshare", ctypes.c_int(_CLONE_NEWNS))
        return
    _call("unshare", ctypes.c_int(_CLONE_NEWUSER | _CLONE_NEWNS))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _rebuild_run() -> None:
    """Put a writable `/run` over the machine's, with everything that was in it at its place."""
    # Any directory that can be mounted on, and that `/run` does not lie in.
    stage = Path("/proc/self/cwd").resolve()
    _mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    try:
        for entry in _RUN.iterdir():
            _show_in(stage, entry)
        _mount(str(stage), _RUN, None, _MS_MOVE)
    except OSError:
        # The program's own files are below.
        _call("umount2", os.fsencode(stage), ctypes.c_int(_MNT_DETACH))
        raise


def _show_in(stage: Path, entry: Path) -> None:
    place = stage / entry.name
    if entry.is_symlink():
        place.symlink_to(entry.readlink())
        return
    if entry.is_dir():
        place.mkdir()
    else:
        place.touch()
    _mount(str(entry), place, None, _MS_BIND | _MS_REC)


def _mount(source: str | None, target: Path, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, str(target), kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), None if data is None else data.encode())


def _call(name: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
