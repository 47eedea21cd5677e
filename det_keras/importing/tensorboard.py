"""TensorBoard: files of events, read without TensorBoard.

A file is a sequence of records: a length of 8 bytes, its checksum, the message `Event`, and its checksum. A writer that
was killed leaves the last record incomplete, and one that still runs as well: it is left out. Event files say neither
when a run ended nor how: a run counts as completed at its last event, and is continued when there are more.

Sources: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`,
`tensorflow/core/framework/summary.proto`, `tensorflow/core/framework/tensor.proto`, and
`tensorboard/plugins/hparams/plugin_data.proto`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from det_keras.importing import wire
from det_keras.importing.base import (
    BrokenRun,
    BrokenRunError,
    FoundRun,
    Points,
    Run,
    Series,
    Table,
    WrongPathError,
    file_facts,
    fingerprint,
    group_of,
    last_time,
    tables_of,
    time_at,
)
from det_keras.importing.checksums import bad_record
from det_keras.protocol.metrics import TRAINING, VALIDATION
from det_keras.protocol.states import COMPLETED, ERROR

_MARK = ".tfevents."
_EXPECTED = "a directory with event files (`events.out.tfevents.*`) in it or in folders below it"
#: Folders of Keras's callback, which belong to the run around them; the second has its validations.
_PARTS = {"train": TRAINING, "validation": VALIDATION}
_HEAD = struct.Struct("<QI")
_FOOT_BYTES = 4
_WALL = struct.Struct("<d")
_SINGLE = struct.Struct("<f")
_MICROSECONDS = 1_000_000
# Larger records have images, graphs and the like.
_LONGEST_SCALARS = 1 << 16
# By `DataType`: the field of a tensor's values, and their form in `tensor_content`.
_FLOATS = {1: (5, "<f"), 2: (6, "<d")}
_INTEGERS = {3: (7, "<i"), 4: (7, "<B"), 5: (7, "<h"), 6: (7, "<b"), 9: (10, "<q"), 10: (11, "<?")}
# `Status` of the plugin of hyperparameters.
_FAILURE = 2


def _in_time(series: Series) -> Series:
    """Return points in the order of their times: files of a run that was started again may overlap."""
    if (np.diff(series.times) >= 0).all():
        return series
    order = np.argsort(series.times, kind="stable")
    return Series(series.steps[order], series.times[order], series.values[order])


def find(path: Path, experiment: str | None, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    """Find the runs below a directory: each folder with event files is one.

    Args:
        path: the directory, as TensorBoard's ``--logdir``.
        experiment: has no effect: TensorBoard has no experiments.
        at: not used: no run is running.

    Raises:
        WrongPathError: there are no event files.
    """
    if not path.is_dir():
        problem = "is no directory" if path.exists() else "does not exist"
        raise WrongPathError(f"{path} {problem}. Expected {_EXPECTED}.")
    root = path.resolve()
    runs: dict[Path, dict[Path, str | None]] = {}
    for folder in _folders(root):
        files = sorted(file for file in folder.iterdir() if _MARK in file.name and file.is_file())
        # The folders of a callback whose directory is PATH itself belong to PATH.
        is_part = folder.name in _PARTS and folder != root
        run = folder.parent if is_part else folder
        for file in files:
            runs.setdefault(run, {})[file] = _PARTS[folder.name] if is_part else None
    if not runs:
        raise WrongPathError(f"{path} has no event files. Expected {_EXPECTED}.")
    for run, groups in sorted(runs.items()):
        yield _found(run, root, groups)


def _folders(root: Path) -> list[Path]:
    return [Path(folder) for folder, _, names in os.walk(root) if any(_MARK in name for name in names)]


def _found(run: Path, root: Path, groups: dict[Path, str | None]) -> FoundRun | BrokenRun:
    name = root.name if run == root else run.relative_to(root).as_posix()
    try:
        facts = file_facts(groups, run)
    except OSError as error:
        return BrokenRun(BrokenRunError(f"{error.filename} cannot be read: {error.strerror}."))

    def read() -> Run:
        return _read(name, groups)

    return FoundRun(str(run), str(run), fingerprint(name, facts), read)


def _read(name: str, groups: dict[Path, str | None]) -> Run:
    readers: dict[str | None, _Reader] = {}
    hparams: dict[str, Any] = {}
    status = None
    for file, group in groups.items():
        reader = readers.setdefault(group, _Reader())
        reader.read(file)
    series: dict[str, dict[str, Series]] = {}
    first, last = math.inf, 0.0
    for group, reader in readers.items():
        hparams |= reader.hparams
        status = reader.status or status
        first, last = min(first, reader.first), max(last, reader.last)
        for tag, points in reader.points.items():
            series.setdefault(group or group_of(tag), {})[tag] = _in_time(points.series())
    tables: dict[str, Table] = {}
    for group, members in series.items():
        tables |= tables_of(members, lambda _, group=group: group)  # type: ignore[misc]
    if first == math.inf:
        # Not even the record that begins a file: the time in the name, or that of the file.
        first = last = min(file.stat().st_mtime for file in groups)
    started = time_at(first * _MICROSECONDS)
    ended = max(time_at(last * _MICROSECONDS), last_time(tables, started))
    return Run(
        name=name,
        project="",
        state=ERROR if status == _FAILURE else COMPLETED,
        started=started,
        ended=ended,
        hparams=hparams,
        tables=tables,
    )


class _Reader:
    """Reads the scalars of event files one after another."""

    def __init__(self) -> None:
        self.points: dict[str, Points] = {}
        self.hparams: dict[str, Any] = {}
        self.status: int | None = None
        self.first, self.last = math.inf, 0.0
        # The plugin of each tag is named by its first event only.
        self._plugins: dict[str, str] = {}
        # What follows the step in an event of one scalar, without the value: the same in all events of its tag.
        self._tags: dict[bytes, Points] = {}

    def read(self, path: Path) -> None:
        """Read a file.

        Raises:
            BrokenRunError: it is damaged.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BrokenRunError(f"{path} cannot be read: {error.strerror}.") from None
        places = _records(path, data)
        wrong = bad_record(data, [place for place in places if place[1] <= _LONGEST_SCALARS])
        if wrong is not None:
            raise BrokenRunError(f"{path}, byte {wrong}: the checksum of the record is wrong.")
        for start, size in places:
            event = data[start : start + size]
            try:
                if not self._take_known(event):
                    self._take(event)
            except wire.MalformedError:
                raise BrokenRunError(f"{path}, byte {start}: the record is no event.") from None

    def _take_known(self, event: bytes) -> bool:
        """Take an event like one before it: its time, its step and one scalar."""
        if len(event) < 16 or event[0] != 0x09 or event[9] != 0x10:
            return False
        position, step, shift = 10, 0, 0
        while event[position] > 127 and position < 20 and position + 1 < len(event):
            step |= (event[position] & 127) << shift
            shift += 7
            position += 1
        step |= event[position] << shift
        points = self._tags.get(event[position + 1 : -4])
        if points is None or shift > 56:
            return False
        (time,) = _WALL.unpack_from(event, 1)
        (value,) = _SINGLE.unpack_from(event, len(event) - 4)
        points.steps.append(step)
        points.times.append(time)
        points.values.append(value)
        if time > self.last:
            self.last = time
        return True

    def _take(self, event: bytes) -> None:
        time, step, summaries = 0.0, 0, []
        for number, kind, value in wire.fields(event):
            if number == 1 and kind == wire.FIXED64:
                time = wire.double(value)
            elif number == 2 and kind == wire.VARINT:
                step = wire.number(value)
            elif number == 5 and kind == wire.BYTES:
                summaries.append(wire.content(value))
        if time and math.isfinite(time):
            self.first, self.last = min(self.first, time), max(self.last, time)
        values = [
            wire.content(value)
            for summary in summaries
            for number, kind, value in wire.fields(summary)
            if number == 1 and kind == wire.BYTES
        ]
        for value in values:
            found = self._scalar(value)
            if found is None:
                continue
            tag, scalar, is_single = found
            points = self.points.setdefault(tag, Points())
            points.steps.append(step)
            points.times.append(time)
            points.values.append(scalar)
            if is_single and len(values) == 1 and event[0] == 0x09 and event[9:10] == b"\x10":
                self._remember(event, scalar, points)

    def _remember(self, event: bytes, scalar: float, points: Points) -> None:
        (last,) = _SINGLE.unpack_from(event, len(event) - 4)
        if last != scalar or event[-5:-4] not in (b"\x15", b"\x04"):
            # Something follows the value.
            return
        _, behind = wire.varint(event, 10)
        self._tags[event[behind:-4]] = points

    def _scalar(self, data: bytes) -> tuple[str, float, bool] | None:
        """Return tag and value of a scalar, and whether it is a float of 32 bits; None for everything else."""
        tag, value, tensor = "", None, None
        for number, kind, content in wire.fields(data):
            if number == 1:
                tag = wire.text(content)
            elif number == 2 and kind == wire.FIXED32:
                value = wire.single(content)
            elif number == 8:
                tensor = wire.content(content)
            elif number == 9:
                plugin, settings = _plugin(wire.content(content))
                self._plugins.setdefault(tag, plugin)
                if plugin == "hparams":
                    self._take_hparams(settings)
        if value is not None:
            return tag, value, True
        if tensor is None or self._plugins.get(tag) != "scalars":
            return None
        kind, scalar = _tensor_value(tensor)
        return None if scalar is None else (tag, scalar, kind == 1)

    def _take_hparams(self, data: bytes) -> None:
        for number, kind, value in wire.fields(data):
            if kind != wire.BYTES:
                continue
            if number == 3:
                self.hparams |= _hparams(wire.content(value))
            elif number == 4:
                for inner, _, status in wire.fields(wire.content(value)):
                    self.status = wire.number(status) if inner == 1 else self.status


def _records(path: Path, data: bytes) -> list[tuple[int, int]]:
    """Return the start and the size of each complete record."""
    places, position, end = [], 0, len(data)
    head = _HEAD.unpack_from
    while position + 12 <= end:
        size, _ = head(data, position)
        behind = position + 12 + size + _FOOT_BYTES
        if behind > end:
            break
        places.append((position + 12, size))
        position = behind
    wrong = bad_record(data, [(start - 12, 8) for start, _ in places])
    if wrong is None and position + 12 <= end:
        # The last record is incomplete only if its length is what was written.
        wrong = bad_record(data, [(position, 8)])
    if wrong is not None:
        raise BrokenRunError(f"{path}, byte {wrong}: no record of events begins here.")
    return places


def _plugin(metadata: bytes) -> tuple[str, bytes]:
    for number, kind, value in wire.fields(metadata):
        if number == 1 and kind == wire.BYTES:
            parts = {inner: content for inner, _, content in wire.fields(wire.content(value))}
            return wire.text(parts.get(1, b"")), wire.content(parts.get(2, b""))
    return "", b""


def _tensor_value(data: bytes) -> tuple[int, float | None]:
    """Return the type and the number of a tensor with one element; None for other tensors."""
    found: dict[int, int | bytes] = {number: value for number, _, value in wire.fields(data)}
    kind = wire.number(found.get(1, 0))
    raw = found.get(4)
    if kind in _FLOATS:
        values, form = _FLOATS[kind]
        return kind, _one(form, raw or found.get(values, b""))
    if kind not in _INTEGERS:
        return kind, None
    values, form = _INTEGERS[kind]
    if raw:
        return kind, _one(form, raw)
    value = found.get(values, 0)
    if isinstance(value, bytes):
        value = wire.varint(value, 0)[0] if value else 0
    return kind, float(wire.signed(value))


def _one(form: str, content: int | bytes) -> float | None:
    if content == b"":
        # A default value is not written.
        return 0.0
    if isinstance(content, int) or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _hparams(data: bytes) -> dict[str, Any]:
    """Return the hyperparameters of `SessionStartInfo`."""
    found: dict[str, Any] = {}
    for number, kind, value in wire.fields(data):
        if number == 1 and kind == wire.BYTES:
            entry = {inner: content for inner, _, content in wire.fields(wire.content(value))}
            found[wire.text(entry.get(1, b""))] = _plain(wire.content(entry.get(2, b"")))
    return found


def _plain(data: bytes) -> Any:
    """Return a `google.protobuf.Value` that is no list or object."""
    for number, _, value in wire.fields(data):
        if number == 2:
            x = wire.double(value)
            return int(x) if x.is_integer() and abs(x) < 1 << 53 else x
        if number == 3:
            return wire.text(value)
        if number == 4:
            return bool(value)
    return None
