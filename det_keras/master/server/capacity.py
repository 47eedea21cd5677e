"""How much the master does at once. It follows from the number of files that its process may have open.

Each connection is an open file, and so are the files of the database, of logs and of pipes. Without a bound below the
limit of the process, clients that connect could keep the master from opening its own database.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

# A connection with TLS takes some 100 KB. More files than these would serve connections that memory cannot.
_MOST_FILES = 65_536
_MOST_CONNECTIONS = 4_096
# What a master has open without any call: its log and lock, the listening socket, the database, the fork server.
_OWN_FILES = 24
# A thread may have a connection to the database open, which is two files, and read a file or start a process. One in
# four may serve a download besides.
_FILES_PER_THREAD = 5
_FEWEST_THREADS, _MOST_THREADS = 4, 40
_MOST_ANONYMOUS_CALLS = 128
_MOST_STREAMS_PER_CALLER = 256


@dataclass(frozen=True)
class FileLimit:
    """How many files the master may have open, and how many a process of a task."""

    master: int
    task: int


def raise_file_limit() -> FileLimit:
    """Raise the limit of open files of this process to what the system permits.

    Programs that use `select` may fail with more than 1,024 open files, so tasks keep the limit that the master was
    started with.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have another limit, below the one that they name.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return FileLimit(_file_limit(), soft)


@dataclass(frozen=True)
class Capacity:
    """The bounds of connections and of the calls on them.

    Attributes:
        connections: connections in all.
        waiting: connections without a complete request, of which nobody knows yet whose they are.
        waiting_per_address: those of one address.
        calls: calls that are being answered. All of them may be those of tasks.
        user_calls: calls of users, with anonymous ones; the rest is for tasks.
        anonymous_calls: calls without a login.
        anonymous_calls_per_address: those of one address.
        user_uploads: calls of users whose bodies have not arrived.
        task_uploads: those of tasks.
        uploads_per_caller: those of one user or of one task.
        user_streams: followed logs, open pages and long polls of users.
        task_streams: those of tasks.
        streams_per_caller: those of one user or of one task.
        downloads: metrics and archives that are sent in pieces; each has a connection to the database, or a file, open.
        downloads_per_caller: those of one user or of one task.
        threads: threads of the calls that use the database or the disk.
    """

    connections: int
    waiting: int
    waiting_per_address: int
    calls: int
    user_calls: int
    anonymous_calls: int
    anonymous_calls_per_address: int
    user_uploads: int
    task_uploads: int
    uploads_per_caller: int
    user_streams: int
    task_streams: int
    streams_per_caller: int
    downloads: int
    downloads_per_caller: int
    threads: int

    @classmethod
    def of(cls, file_limit: int) -> Capacity:
        """Return what a process can do that may have `file_limit` files open."""
        threads = min(max(file_limit // 16, _FEWEST_THREADS), _MOST_THREADS)
        reserve = max(_OWN_FILES + _FILES_PER_THREAD * threads, file_limit // 4)
        connections = min(max(file_limit - reserve, 8), _MOST_CONNECTIONS)
        waiting = max(connections // 4, 1)
        calls = connections - waiting
        anonymous = min(max(calls // 4, 2), _MOST_ANONYMOUS_CALLS)
        user_calls = calls * 3 // 4
        user_uploads = max(user_calls // 2, 1)
        user_streams = calls // 4
        downloads = max(threads // 4, 2)
        return cls(
            connections=connections,
            waiting=waiting,
            waiting_per_address=max(waiting // 2, 1),
            calls=calls,
            user_calls=user_calls,
            anonymous_calls=anonymous,
            anonymous_calls_per_address=max(anonymous // 2, 1),
            user_uploads=user_uploads,
            task_uploads=calls // 2,
            uploads_per_caller=max(user_uploads * 3 // 4, 1),
            user_streams=user_streams,
            task_streams=calls // 2,
            streams_per_caller=min(max(user_streams * 3 // 4, 1), _MOST_STREAMS_PER_CALLER),
            downloads=downloads,
            downloads_per_caller=max(downloads * 3 // 4, 1),
            threads=threads,
        )

    @classmethod
    def of_process(cls) -> Capacity:
        """Return what this process can do."""
        return cls.of(_file_limit())


def _file_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)
