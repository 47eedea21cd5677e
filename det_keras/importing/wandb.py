"""W&B: the files ``run-ID.wandb`` that it keeps of each run, online or offline, read without W&B.

A file is a log in the format of LevelDB: blocks of 32 KiB with parts of records, each of which is a message `Record`. A
run that was killed, or that still runs, has no record of its exit, and its last record may be incomplete. A run that
was resumed has several files, which are read in the order of their dates.

Sources: `wandb/proto/wandb_internal.proto` of W&B 0.31, `core/pkg/leveldb/record.go`, and
https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from det_keras.importing import wire
from det_keras.importing.base import (
    BrokenRun,
    BrokenRunError,
    FoundRun,
    Points,
    Run,
    WrongPathError,
    file_facts,
    fingerprint,
    last_time,
    open_state,
    tables_of,
    time_at,
)
from det_keras.protocol.states import ACTIVE, COMPLETED, ERROR

_SUFFIX = ".wandb"
_EXPECTED = (
    "a directory `wandb` with folders such as `offline-run-DATE-ID`, one of them, or a file `run-ID.wandb`"
)
_FILE_HEAD = b":W&B\xe1\xbe"
_FILE_HEAD_BYTES = 7
_BLOCK_BYTES = 32 << 10
# The record of the run is one of the first.
_HEAD_BYTES = 4 * _BLOCK_BYTES
_PART = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8
_MICROSECONDS = 1_000_000
# Fields of `Record`.
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18
_NOT_FINITE = {b"NaN": math.nan, b"Infinity": math.inf, b"-Infinity": -math.inf}
_DATE = re.compile(r"run-(\d{8}_\d{6})")
_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]*")


def find(path: Path, experiment: str | None, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    """Find the runs in a directory of W&B.

    Args:
        path: a directory with folders of runs at any depth, or one file.
        experiment: has no effect.
        at: the current time.

    Raises:
        WrongPathError: there are no runs.
    """
    files = _files(path)
    runs: dict[str, list[Path]] = {}
    for file in sorted(files, key=_age):
        try:
            name = _id_of(file)
        except BrokenRunError as error:
            yield BrokenRun(error)
            continue
        if name is not None:
            runs.setdefault(name, []).append(file)
    for name, members in runs.items():
        yield _found(name, members, at)


def _age(file: Path) -> tuple[str, str]:
    """Return the key that sorts the files of a run, the oldest first: their folders are named by date and time."""
    date = _DATE.search(file.parent.name)
    return date[1] if date else "", str(file)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix != _SUFFIX:
            raise WrongPathError(f"{path} is no file of W&B. Expected {_EXPECTED}.")
        return [path.resolve()]
    if not path.is_dir():
        raise WrongPathError(f"{path} does not exist. Expected {_EXPECTED}.")
    # Links are not followed: `latest-run` is one.
    files = [
        Path(folder) / name
        for folder, _, names in os.walk(path.resolve())
        for name in names
        if name.startswith("run-") and name.endswith(_SUFFIX)
    ]
    if not files:
        raise WrongPathError(f"{path} has no runs of W&B. Expected {_EXPECTED}.")
    return files


def _id_of(file: Path) -> str | None:
    """Return the project and the id of a run: other projects may have the same id; None if nothing is stored yet."""
    content = _Content()
    try:
        with file.open("rb") as opened:
            for size in (_HEAD_BYTES, -1):
                opened.seek(0)
                data = opened.read(size)
                for start, record in _records(file, data):
                    _take(file, start, record, content)
                    if content.id:
                        return f"{content.project}/{content.id}"
    except OSError as error:
        raise BrokenRunError(f"{file} cannot be read: {error.strerror}.") from None
    return None


def _found(name: str, files: Sequence[Path], at: datetime) -> FoundRun | BrokenRun:
    try:
        facts = file_facts(files, files[0].parent.parent)
    except OSError as error:
        return BrokenRun(BrokenRunError(f"{error.filename} cannot be read: {error.strerror}."))
    except ValueError:
        facts = [fact for file in files for fact in file_facts([file], file.parent)]
    written = time_at(max(time for _, _, time in facts) / 1000)
    state = open_state(written, at)

    def read() -> Run:
        return _read(name.rpartition("/")[2], files, state)

    return FoundRun(
        name, str(files[-1]), fingerprint(state, facts), read, final=fingerprint(COMPLETED, facts)
    )


@dataclass
class _Content:
    """What the records of a run say."""

    id: str = ""
    entity: str = ""
    project: str = ""
    name: str = ""
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    start_s: float | None = None
    exit_code: int | None = None
    runtime_s: int = 0
    points: dict[str, Points] = field(default_factory=dict)


def _read(run_id: str, files: Sequence[Path], open_as: str) -> Run:
    content = _Content()
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise BrokenRunError(f"{file} cannot be read: {error.strerror}.") from None
        # A later file of a resumed run has an end of its own.
        content.exit_code = None
        for start, record in _records(file, data):
            _take(file, start, record, content)
    series = {name: points.series() for name, points in content.points.items()}
    tables = tables_of(series)
    start_s = content.start_s if content.start_s is not None else files[0].stat().st_mtime
    started = time_at(start_s * _MICROSECONDS)
    state = open_as if content.exit_code is None else COMPLETED if content.exit_code == 0 else ERROR
    ended = None
    if state != ACTIVE:
        ended = last_time(tables, started)
        if content.exit_code is not None:
            ended = max(ended, started + timedelta(seconds=content.runtime_s))
    return Run(
        name=content.name or run_id,
        project=content.project,
        state=state,
        started=started,
        ended=ended,
        hparams={name: value for name, value in content.config.items() if name != "_wandb"},
        tags=content.tags,
        notes=content.notes,
        tables=tables,
        has_end=content.exit_code is not None,
    )


# The log.


def _records(file: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the start and the content of each complete record.

    Raises:
        BrokenRunError: the file is damaged.
    """
    if not _FILE_HEAD.startswith(data[: len(_FILE_HEAD)]) and not data.startswith(_FILE_HEAD):
        raise BrokenRunError(f"{file}, byte 0: this is no file of W&B.")
    position, end = _FILE_HEAD_BYTES, len(data)
    parts: list[bytes] = []
    start = position
    while position + _PART.size <= end:
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _PART.size:
            position += left
            continue
        checksum, size, kind = _PART.unpack_from(data, position)
        content = data[position + _PART.size : position + _PART.size + size]
        if checksum == size == kind == 0:
            # The rest of the block was never written.
            position += left
            continue
        if len(content) < size:
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or not _is_right(checksum, kind, content):
            raise BrokenRunError(f"{file}, byte {position}: the checksum of the record is wrong.")
        if kind in (_WHOLE, _FIRST):
            parts, start = [], position
        elif not parts:
            raise BrokenRunError(f"{file}, byte {position}: the first part of the record is missing.")
        parts.append(content)
        if kind in (_WHOLE, _LAST):
            yield start, parts[0] if len(parts) == 1 else b"".join(parts)
            parts = []
        position += _PART.size + size


def _is_right(checksum: int, kind: int, content: bytes) -> bool:
    crc = zlib.crc32(content, zlib.crc32(bytes([kind])))
    # LevelDB masks the checksum, and W&B does not.
    return checksum in (crc, (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


# The records.


def _take(file: Path, start: int, record: bytes, content: _Content) -> None:
    try:
        for number, kind, value in wire.fields(record):
            if kind != wire.BYTES:
                continue
            if number == _HISTORY:
                _take_history(wire.content(value), content)
            elif number == _RUN:
                _take_run(wire.content(value), content)
            elif number == _CONFIG:
                _take_config(wire.content(value), content)
            elif number == _EXIT:
                exit_fields = {
                    inner: wire.number(each)
                    for inner, type_, each in wire.fields(wire.content(value))
                    if type_ == wire.VARINT
                }
                content.exit_code = exit_fields.get(1, 0)
                content.runtime_s = exit_fields.get(2, 0)
    except (wire.MalformedError, ValueError) as error:
        raise BrokenRunError(f"{file}, byte {start}: the record cannot be read ({error}).") from None


def _take_run(data: bytes, content: _Content) -> None:
    tags = []
    for number, _, value in wire.fields(data):
        if number == 1:
            content.id = wire.text(value)
        elif number == 2:
            content.entity = wire.text(value)
        elif number == 3:
            content.project = wire.text(value)
        elif number == 4:
            _take_config(wire.content(value), content)
        elif number == 8:
            content.name = wire.text(value)
        elif number == 9:
            content.notes = wire.text(value)
        elif number == 10:
            tags.append(wire.text(value))
        elif number == 17:
            parts = {inner: wire.number(each) for inner, _, each in wire.fields(wire.content(value))}
            # The first start of a resumed run.
            if content.start_s is None:
                content.start_s = parts.get(1, 0) + parts.get(2, 0) / 1e9
    content.tags = tags or content.tags


def _take_config(data: bytes, content: _Content) -> None:
    for number, _, value in wire.fields(data):
        keys, text = [], None
        for inner, _, each in wire.fields(wire.content(value)):
            if inner in (1, 2):
                keys.append(wire.text(each))
            elif inner == 16:
                text = wire.content(each)
        if not keys:
            continue
        *path, last = keys
        holder = content.config
        for key in path:
            inner_holder = holder.get(key)
            holder[key] = holder = inner_holder if isinstance(inner_holder, dict) else {}
        if number == 1 and text is not None:
            holder[last] = json.loads(text)
        elif number == 2:
            holder.pop(last, None)


def _take_history(data: bytes, content: _Content) -> None:
    step, time_s, values = None, 0.0, []
    for number, kind, item in wire.fields(data):
        if kind != wire.BYTES or isinstance(item, int):
            continue
        if number == 2:
            step = 0
            for inner, _, value in wire.fields(item):
                step = wire.number(value) if inner == 1 else step
        elif number == 1:
            name, found = _item(item)
            if not name.startswith("_"):
                values.append((name, found))
            elif name == "_timestamp" and isinstance(found, float):
                time_s = found
            elif name == "_step" and isinstance(found, float) and step is None:
                step = int(found)
    for name, found in values:
        pairs = ((name, found),) if isinstance(found, float) else _numbers(name, found)
        for leaf, scalar in pairs:
            points = content.points.get(leaf)
            if points is None:
                points = content.points[leaf] = Points()
            points.steps.append(step or 0)
            points.times.append(time_s)
            points.values.append(scalar)


def _item(data: bytes) -> tuple[str, Any]:
    """Return the name and the value of an item: a float, or what its JSON says."""
    # Nearly all are a short key, in field 1 or 2, and a short number in field 16. A run has many thousands of them.
    if data[:1] in (b"\x0a", b"\x12") and 128 > len(data) > data[1] + 4:
        behind = data[1] + 2
        if data[behind : behind + 2] == b"\x82\x01" and data[behind + 2] == len(data) - behind - 3:
            text = data[behind + 3 :]
            if _NUMBER.fullmatch(text):
                return data[2:behind].decode("utf-8", "replace"), float(text)
    keys, found = [], None
    for number, kind, value in wire.fields(data):
        if number in (1, 2):
            keys.append(wire.text(value))
        elif number == 16:
            found = _value(wire.content(value))
        elif number == 5 and kind == wire.VARINT:
            found = float(wire.zigzag(int(value)))
        elif number == 6:
            found = wire.double(value)
        elif number == 8:
            found = _value(wire.content(value))
    return keys[0] if len(keys) == 1 else ".".join(keys), found


def _value(text: bytes) -> Any:
    if _NUMBER.fullmatch(text):
        return float(text)
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    return json.loads(text) if text[:1] == b"{" else None


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a value; images, histograms, texts and booleans have none."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, dict) and "_type" not in value:
        for key, inner in value.items():
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                yield f"{name}.{key}", float(inner)
            else:
                yield from _numbers(f"{name}.{key}", inner)
