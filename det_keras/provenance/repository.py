"""The state of a git repository: its commit, its branch, and what was changed since.

Git is only asked. Its answers are bounded in size and in time, because a repository may have any size.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: A longer diff is cut after the last whole line.
MOST_DIFF_BYTES = 256 << 10
_MOST_STATUS_BYTES = 1 << 20
_MOST_NAMES = 200
_TIMEOUT_S = 2.0
# They name another repository than that of the directory, in hooks of git.
_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_EXTERNAL_DIFF")
# Files that usually contain nothing but secrets: changes of them are not stored.
_SECRET_FILES = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*", ".netrc", ".npmrc",
    ".pypirc", "credentials", "*credentials*.json", "*credentials*.y*ml", "secrets.json", "secrets.y*ml",
    "secrets.toml", "*.secret",
)  # fmt: skip
# Whatever the user's settings are.
_DIFF = (
    "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--src-prefix=a/", "--dst-prefix=b/",
    "HEAD",
)  # fmt: skip

# A file with another time and the same content, which git names unless it refreshes the index.
_UNCHANGED = re.compile(rb"^diff --git [^\n]*\n(?=diff --git |\Z)", re.MULTILINE)


def read_repository(
    directory: Path | str, environ: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S
) -> dict[str, Any] | None:
    """Return the state of the repository that contains a directory; None without one, or without git.

    Args:
        directory: a directory inside of the work tree.
        environ: the environment for git.
        timeout_s: after this time in seconds git is ended, and what it has not answered is missing.

    Returns:
        `root`, `remote` (without credentials), `commit` (None before the first), `branch` (None if HEAD is detached),
        `isDirty`, `diff` (of the whole work tree against the commit; binary files are only named), `isCut`,
        `untracked` and `withheld`: names of new files, and of changed files whose names suggest secrets.
    """
    with _Git(directory, environ, timeout_s) as git:
        # All of them at once: most of the time is the start of the processes.
        status = git.ask("status", "--porcelain=v2", "--branch", "-z", most_bytes=_MOST_STATUS_BYTES)
        hidden = [f":(top,exclude,glob,icase)**/{pattern}" for pattern in _SECRET_FILES]
        diff = git.ask(*_DIFF, "--", ":/", *hidden, most_bytes=MOST_DIFF_BYTES)
        root = git.ask("rev-parse", "--show-toplevel")
        remotes = git.ask("config", "--get-regexp", r"^remote\..*\.url$")
        if not (top := _text(root.read()).rstrip("\n")):
            return None
        state = _parse_status(status.read())
        changes = diff.read()
        addresses = _text(remotes.read())
    secret = [name for name in state["changed"] if _sounds_secret(name)]
    return {
        "root": top,
        "remote": _remote(addresses),
        "commit": state["commit"],
        "branch": state["branch"],
        "isDirty": bool(state["changed"] or state["untracked"]) if status.is_complete else None,
        "diff": _text(
            _UNCHANGED.sub(b"", changes if diff.is_complete else changes[: changes.rfind(b"\n") + 1])
        ),
        "isCut": not diff.is_complete,
        "untracked": state["untracked"][:_MOST_NAMES],
        "withheld": secret[:_MOST_NAMES],
    }


class _Answer:
    """What a process of git prints, up to a number of bytes."""

    def __init__(self, process: subprocess.Popen[bytes], most_bytes: int) -> None:
        self._process = process
        self._most_bytes = most_bytes
        #: Whether nothing was cut off, by size or by time.
        self.is_complete = True

    def read(self) -> bytes:
        """Read to the end, or to the most bytes, and return the content."""
        assert self._process.stdout is not None
        content = self._process.stdout.read(self._most_bytes + 1)
        if len(content) > self._most_bytes:
            self.is_complete = False
            self.end()
        elif self._process.wait() < 0:
            self.is_complete = False
        return content[: self._most_bytes]

    def end(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.kill()


class _Git:
    """Processes of git in a directory, ended after a time."""

    def __init__(self, directory: Path | str, environ: Mapping[str, str], timeout_s: float) -> None:
        self._directory = str(directory)
        kept = {name: value for name, value in environ.items() if name not in _OTHER_REPOSITORY}
        # No locks: `status` would write the index otherwise. Its words are not translated.
        self._environ = {**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        self._answers: list[tuple[subprocess.Popen[bytes], _Answer]] = []
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Git:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._end()
        for process, _answer in self._answers:
            assert process.stdout is not None
            process.stdout.close()
            process.wait()

    def ask(self, *arguments: str, most_bytes: int = 1 << 16) -> _Answer:
        """Start git; the answer is read later.

        Raises:
            OSError: git is not installed, or the directory does not exist.
        """
        process = subprocess.Popen(
            # A monitor of files is a program that the repository names. A refresh would write the index.
            ["git", "-c", "core.fsmonitor=false", "-c", "diff.autoRefreshIndex=false", *arguments],
            cwd=self._directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        answer = _Answer(process, most_bytes)
        self._answers.append((process, answer))
        return answer

    def _end(self) -> None:
        for _process, answer in self._answers:
            answer.end()


def _parse_status(content: bytes) -> dict[str, Any]:
    """Return commit, branch and names from ``git status --porcelain=v2 --branch -z``."""
    commit = branch = None
    changed: list[str] = []
    untracked: list[str] = []
    entries = iter(_text(content).split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid ") and not entry.endswith("(initial)"):
            commit = entry.rpartition(" ")[2]
        elif entry.startswith("# branch.head ") and not entry.endswith("(detached)"):
            branch = entry.removeprefix("# branch.head ")
        elif kind == "?":
            untracked.append(rest)
        elif kind in _FIELDS_BEFORE_NAME:
            changed.append(rest.split(" ", _FIELDS_BEFORE_NAME[kind])[-1])
            if kind == "2":
                # A renamed file is followed by its earlier name.
                changed.append(next(entries, ""))
    return {"commit": commit, "branch": branch, "changed": changed, "untracked": untracked}


# A changed, a renamed and an unmerged file.
_FIELDS_BEFORE_NAME = {"1": 7, "2": 8, "u": 9}


def _sounds_secret(name: str) -> bool:
    path = Path(name.lower())
    return any(path.match(pattern) for pattern in _SECRET_FILES)


def _remote(lines: str) -> str | None:
    """Return the address of `origin`, else of the first remote, without user, password, query and fragment."""
    named: Sequence[tuple[str, str]] = [
        (name, address)
        for name, _, address in (line.partition(" ") for line in lines.splitlines())
        if address
    ]
    if not named:
        return None
    address = dict(named).get("remote.origin.url", named[0][1])
    if "://" not in address:
        # A path, or `user@host:path`, which has no password.
        return address
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
