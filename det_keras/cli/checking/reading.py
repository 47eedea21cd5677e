"""The checks that change nothing on the master: its version, the login, slots, storage and features."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from det_keras.about import __version__
from det_keras.cli.checking.finding import Finding, Outcome
from det_keras.client import Session
from det_keras.errors import ConfigError, DetError, MasterError

# The release whose master every call was tried with.
_TRIED_VERSION = "0.38.1"

_CONFIG = "{name: check, entrypoint: 'true', searcher: {name: single, metric: m}}"
_MISSING_FEATURES = (
    "the searcher `tpe`",
    "reports (`det experiment report`)",
    "the pages of det_keras",
    "jobs in `det job list` that have ended",
)


def find_version(session: Session) -> Finding:
    """Check that the master is one that the client was tried with."""
    info = session.api.accounts.cluster()
    version = info["version"]
    if not session.api.accounts.is_determined():
        return Finding("master", Outcome.OK, f"det_keras at {session.url}, and this client is {__version__}")
    text = f"Determined {version} at {session.url}, and this client is det_keras {__version__}"
    if version == _TRIED_VERSION:
        return Finding("master", Outcome.OK, text)
    fix = f"det_keras was tried with Determined {_TRIED_VERSION}. Run this command with --submit."
    return Finding("master", Outcome.NOTE, text, fix)


def find_slots(session: Session) -> Finding:
    """Check that the cluster has slots."""
    pools = session.api.accounts.resource_pools()
    shown = ", ".join(
        f"{pool['name']}: {pool.get('slotsAvailable', 0)} slots, {pool.get('slotsUsed', 0)} in use"
        for pool in pools
    )
    if any(pool.get("slotsAvailable", 0) for pool in pools):
        return Finding("slots", Outcome.OK, shown)
    return Finding(
        "slots",
        Outcome.FAILED,
        shown or "there is no resource pool",
        "Connect an agent, or set `resources.slots_per_trial: 0` to train without a slot.",
    )


def find_storage(session: Session) -> Finding:
    """Check that checkpoints can be stored where the cluster stores them, as far as this machine can tell."""
    config = session.api.experiments.complete(_CONFIG)
    if config is None:
        text = "this master does not say where it stores checkpoints"
        return Finding("storage", Outcome.NOTE, text, "Run this command with --submit to try it.")
    section = config["checkpoint_storage"]
    place = _place(section)
    if section["type"] in ("shared_fs", "directory") and not Path(_root(section)).is_dir():
        return Finding(
            "storage",
            Outcome.NOTE,
            f"{place} is not a directory of this machine; trials have it, and downloads go through the master",
        )
    try:
        _store_and_read(section)
    except (ConfigError, DetError, OSError) as error:
        return Finding(
            "storage",
            Outcome.FAILED,
            f"{place} cannot be used from this machine: {error}",
            "Trials may have other rights there: run this command with --submit.",
        )
    if section["type"] in ("shared_fs", "directory") and session.api.accounts.is_determined():
        text = f"{place} can be written and read on this machine; whether it is the cluster's, only --submit can tell"
        return Finding("storage", Outcome.NOTE, text)
    return Finding("storage", Outcome.OK, f"{place} can be written and read from this machine")


def find_features(session: Session) -> Iterator[Finding]:
    """Name what only our master has, if this is another one."""
    if session.api.accounts.is_determined():
        yield Finding("features", Outcome.NOTE, f"this master has not: {', '.join(_MISSING_FEATURES)}")


def find_login(session: Session) -> Finding:
    """Check that the master accepts the token."""
    try:
        user = session.api.accounts.me()
    except MasterError as error:
        return Finding(
            "login", Outcome.FAILED, str(error), f"Log in with `det -m {session.url} user login NAME`."
        )
    return Finding("login", Outcome.OK, f"as {user['username']}")


def _store_and_read(section: Mapping[str, Any]) -> None:
    from det_keras import storage

    store = storage.from_config(section)
    name = str(uuid.uuid4())
    try:
        with store.store_path(name) as directory:
            (directory / "probe").write_text(name, encoding="utf-8")
        with store.restore_path(name) as directory:
            found = (directory / "probe").read_text(encoding="utf-8")
    finally:
        store.delete(name)
    if found != name:
        raise DetError(f"what was written is not what was read ({found[:50]!r})")


def _root(section: Mapping[str, Any]) -> str:
    return str(section["host_path" if section["type"] == "shared_fs" else "container_path"])


def _place(section: Mapping[str, Any]) -> str:
    names = ("host_path", "container_path", "bucket", "container")
    where = next((str(section[name]) for name in names if section.get(name)), "")
    return f"{section['type']} {where}".strip()
