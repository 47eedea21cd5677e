"""A git repository to read, and git's own answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NOBODY = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
ENVIRON = {**os.environ, **NOBODY}


class Repository:
    """A repository with one commit.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "trunk")
        self.git("config", "user.email", "a@example.org")
        self.git("config", "user.name", "a")
        self.write("train.py", "one\ntwo\n")
        (root / "data.bin").write_bytes(b"\0\1\2")
        self.commit()

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=ENVIRON, capture_output=True, check=True
        )
        return done.stdout.decode()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")
