"""Servers of object stores, one of each kind for all tests, and a bucket for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers import SERVERS, Server, running

from det_keras import storage


@dataclass
class Bucket:
    """A bucket of a server."""

    server: Server
    name: str

    def section(self, port: int | None = None) -> dict[str, Any]:
        """Return its section; `port` is that of a proxy."""
        return self.server.section(self.name, port)

    def store(self, port: int | None = None) -> Any:
        """Return a storage of it."""
        return storage.from_config(self.section(port))

    def objects(self) -> dict[str, bytes]:
        """Return all objects by their keys without the prefix of the section."""
        return {
            key.removeprefix("some/where/"): content
            for key, content in self.server.objects(self.name).items()
        }

    def key(self, name: str) -> str:
        """Return the whole key of a name."""
        prefix = self.section().get("prefix")
        return f"{prefix}/{name}" if prefix else name

    def put(self, name: str, content: bytes) -> None:
        """Store an object."""
        self.server.put(self.name, self.key(name), content)

    def remove(self, name: str) -> None:
        """Delete an object."""
        self.server.remove(self.name, self.key(name))

    def unfinished(self) -> list[str]:
        """Return the keys of unfinished uploads."""
        return self.server.unfinished(self.name)


class Directory:
    """A directory with the interface of a bucket."""

    def __init__(self, section: dict[str, Any]) -> None:
        self._section = section
        self.root: Path = storage.from_config(section).root  # type: ignore[attr-defined]

    def store(self) -> Any:
        """Return a storage of it."""
        return storage.from_config(self._section)

    def objects(self) -> dict[str, bytes]:
        """Return all files; directories without files as well, which should not remain either."""
        if not self.root.exists():
            return {}
        return {
            path.relative_to(self.root).as_posix(): b"" if path.is_dir() else path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() or not any(path.iterdir())
        }

    def put(self, name: str, content: bytes) -> None:
        """Store a file."""
        (self.root / name).write_bytes(content)

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.root / name).unlink()

    def unfinished(self) -> list[str]:
        """Return the names of unfinished checkpoints."""
        return [path.name for path in self.root.glob(".staging-*")]


DIRECTORIES: dict[str, Any] = {
    "directory": lambda root: {"type": "directory", "container_path": str(root)},
    "shared_fs": lambda root: {"type": "shared_fs", "host_path": str(root), "storage_path": "inner/place"},
}


@pytest.fixture(scope="session")
def servers() -> Iterator[Any]:
    """Return a function from a kind to its server, started when it is first asked for."""
    with ExitStack() as stack:
        started: dict[str, Server | None] = {}

        def server(kind: str) -> Server:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind))
            found = started[kind]
            if found is None:
                pytest.skip(f"the server for {kind} is not installed: run tests/storage/install.sh")
            return found

        yield server


@pytest.fixture(params=[*DIRECTORIES, *SERVERS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an empty storage's place, of each kind in turn."""
    if request.param in DIRECTORIES:
        return Directory(DIRECTORIES[request.param](tmp_path / "root"))
    return request.getfixturevalue("make_bucket")(request.param)


@pytest.fixture(params=sorted(SERVERS))
def bucket(request: pytest.FixtureRequest, make_bucket: Any) -> Bucket:
    """Return an empty bucket, of each kind of store in turn."""
    found: Bucket = make_bucket(request.param)
    return found


@pytest.fixture
def make_bucket(servers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function from a kind of store to an empty bucket."""

    def make(kind: str) -> Bucket:
        return _bucket(servers(kind), monkeypatch)

    return make


def _bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in server.variables(server.port).items():
        monkeypatch.setenv(name, value)
    return Bucket(server, server.make_bucket())
