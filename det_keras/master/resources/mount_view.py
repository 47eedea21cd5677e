"""``python mount_view.py PROGRAM ARG...``: run a program so that it finds Determined's info files.

The original `determined` package reads the facts about its task from files in a fixed directory,
``/run/determined/info``. Tasks on one machine share its files, so each task gets its own view: a mount namespace in
which a small file system is mounted there. Ordinary users may create one where the kernel allows user namespaces.
Elsewhere the program runs without the files, with environment variables only. This is enough for `det_keras`, but
not for the original package.

This is a separate script that uses only the standard library and then executes the program: it costs a few
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

_RUN = Path("/run")
_INFO = _RUN / "determined" / "info"

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_MOVE = 0x1000, 0x4000, 0x80000, 0x2000
_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_MNT_DETACH = 2
_CANNOT_EXECUTE = 127


def main(argv: list[str]) -> NoReturn:
    """Create the view if possible, then execute the program `argv` in place of this process."""
    # If the kernel forbids it, or no master started this script, the program runs without the view.
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
            "gpu_uuids": [uuid for uuid in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
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
        alone = {
            "container_addrs": ["127.0.0.1"],
            "container_rank": 0,
            "container_slot_counts": [len(slots)],
        }
        files["rendezvous.json"] = json.loads(environ.get("DET_KERAS_RENDEZVOUS", "null")) or alone
    return files


def _make_view() -> None:
    files = info_files(os.environ)
    _unshare()
    # Later mounts on the machine appear here too; mounts made here are invisible elsewhere.
    _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
    try:
        _INFO.mkdir(parents=True, exist_ok=True)
    except OSError:
        # An ordinary user cannot create the directory, so `/run` itself is replaced in this view.
        _rebuild_run()
        _INFO.mkdir(parents=True, exist_ok=True)
    _mount("tmpfs", _INFO, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700")
    for name, content in files.items():
        path = _INFO / name
        path.write_text(json.dumps(content), encoding="utf-8")
        # One of the files contains the task's token.
        path.chmod(0o600)


def _unshare() -> None:
    """Leave the machine's mount namespace, together with its user namespace where that is required."""
    user, group = os.geteuid(), os.getegid()
    with contextlib.suppress(OSError):
        _call("unshare", ctypes.c_int(_CLONE_NEWNS))
        return
    _call("unshare", ctypes.c_int(_CLONE_NEWUSER | _CLONE_NEWNS))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _rebuild_run() -> None:
    """Mount a writable `/run` over the machine's, with the same content."""
    # Any directory will do that can be mounted on and that does not contain `/run`.
    stage = Path("/proc/self/cwd").resolve()
    _mount("tmpfs", stage, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755")
    try:
        for entry in _RUN.iterdir():
            _show_in(stage, entry)
        _mount(str(stage), _RUN, None, _MS_MOVE)
    except OSError:
        # The mount hides the program's own files: remove it.
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
