"""MLflow: directories of files (``mlruns``) and SQLite files (``mlflow.db``), read without MLflow.

Source of the layouts: `mlflow/store/tracking/file_store.py` and `mlflow/store/tracking/dbmodels/models.py` of MLflow
3.17. Runs and experiments that were deleted there, and so could be restored, are left out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from det_keras.importing.base import (
    BrokenRun,
    BrokenRunError,
    FoundRun,
    Run,
    Series,
    WrongPathError,
    file_facts,
    fingerprint,
    group_of,
    last_time,
    open_state,
    tables_of,
    time_at,
    value_of,
)
from det_keras.protocol.states import ACTIVE, CANCELED, COMPLETED, ERROR

#: The group of the metrics of MLflow's own monitor, whose steps are numbers of samples.
SYSTEM = "system"
_STATES = {"RUNNING": ACTIVE, "SCHEDULED": ACTIVE, "FINISHED": COMPLETED, "FAILED": ERROR, "KILLED": CANCELED}
# The file store writes the numbers of `RunStatus`.
_NUMBERED = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_EXPECTED = "a directory `mlruns`, or a SQLite file such as `mlflow.db`"
_NOTE = "mlflow.note.content"
# A database has no infinities: these stand for them.
_LARGEST = 1.7976931348623157e308
_MICROSECONDS = 1000


@dataclass(frozen=True)
class _Header:
    """What MLflow stores of a run beside metrics, parameters and tags."""

    id: str
    name: str
    experiment: str
    status: str
    start: int
    end: int | None

    def run(
        self,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        series: Mapping[str, Series],
        written: datetime,
        at: datetime,
    ) -> Run:
        """Return the run with its contents."""
        state = _STATES.get(self.status, ERROR)
        tables = tables_of(series, _group)
        started = time_at(self.start * _MICROSECONDS)
        if state == ACTIVE:
            state = open_state(written, at)
        ended = None
        if state != ACTIVE:
            ended = last_time(tables, started) if self.end is None else time_at(self.end * _MICROSECONDS)
        return Run(
            name=tags.get("mlflow.runName") or self.name,
            project=self.experiment,
            state=state,
            started=started,
            ended=ended,
            hparams={name: value_of(text) for name, text in sorted(params.items())},
            tags=[
                f"{name}={text}" if text else name
                for name, text in sorted(tags.items())
                if not name.startswith("mlflow.")
            ],
            notes=tags.get(_NOTE) or "",
            tables=tables,
        )


def find(path: Path, experiment: str | None, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    """Find the runs of a store.

    Args:
        path: a directory or a file of MLflow, or a directory that contains one under its usual name.
        experiment: only runs of MLflow's experiment with this name; None for all.
        at: the current time.

    Raises:
        WrongPathError: there is no store.
    """
    store = _store(path)
    found = _in_database(store, experiment, at) if store.is_file() else _in_files(store, experiment, at)
    first = next(found, None)
    return iter(()) if first is None else itertools.chain([first], found)


def _store(path: Path) -> Path:
    if path.is_file():
        with path.open("rb") as file:
            if file.read(16) == b"SQLite format 3\0":
                return path
        raise WrongPathError(f"{path} is no SQLite file. Expected {_EXPECTED}.")
    if not path.is_dir():
        raise WrongPathError(f"{path} does not exist. Expected {_EXPECTED}.")
    if _experiments(path):
        return path
    for name in ("mlflow.db", "mlruns"):
        inner = path / name
        if inner.is_file() or (inner.is_dir() and _experiments(inner)):
            return inner
    raise WrongPathError(f"{path} has no runs of MLflow. Expected {_EXPECTED}.")


def _experiments(store: Path) -> list[Path]:
    """Return the directories of the experiments; ``.trash`` has the deleted ones."""
    return sorted(
        folder for folder in store.iterdir() if not folder.name.startswith(".") and _is_experiment(folder)
    )


def _is_experiment(folder: Path) -> bool:
    meta = folder / "meta.yaml"
    if not meta.is_file():
        return False
    # That of a run names it as well.
    text = meta.read_bytes()
    return b"experiment_id:" in text and b"run_id:" not in text and b"run_uuid:" not in text


def _refuse_unknown(experiment: str | None, names: Sequence[str]) -> None:
    if experiment is not None and experiment not in names:
        known = ", ".join(repr(name) for name in sorted(names)[:20])
        raise WrongPathError(f"There is no experiment {experiment!r}. The store has {known or 'none'}.")


# Directories of files.


def _in_files(store: Path, experiment: str | None, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    folders = {}
    broken = []
    for folder in _experiments(store):
        try:
            meta = _meta(folder)
        except BrokenRunError as error:
            broken.append(BrokenRun(error))
            continue
        if meta.get("lifecycle_stage") != "deleted":
            folders[folder] = str(meta.get("name", folder.name))
    _refuse_unknown(experiment, list(folders.values()))
    yield from broken
    for folder, name in folders.items():
        if experiment in (None, name):
            yield from _of_folder(folder, name, at)


def _of_folder(folder: Path, experiment: str, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    """Yield the runs of an experiment, the broken ones first, the others in the order of their starts."""
    found: list[tuple[int, FoundRun]] = []
    for path in sorted(folder.iterdir()):
        if not (path / "meta.yaml").is_file():
            if (path / "metrics").is_dir() and (path / "params").is_dir():
                yield BrokenRun(BrokenRunError(f"{path / 'meta.yaml'} is missing."))
            continue
        try:
            meta = _meta(path)
            if meta.get("lifecycle_stage") == "deleted":
                continue
            header = _header(path, meta, experiment)
            files = [file for kind in ("metrics", "params", "tags") for file in _files(path / kind).values()]
            facts = file_facts([*files, path / "meta.yaml"], path)
        except BrokenRunError as error:
            yield BrokenRun(error)
            continue
        except OSError as error:
            yield BrokenRun(BrokenRunError(f"{error.filename} cannot be read: {error.strerror}."))
            continue
        written = time_at(max(time for _, _, time in facts) / 1000)
        state = open_state(written, at) if _STATES.get(header.status) == ACTIVE else ""

        def read(path: Path = path, header: _Header = header, written: datetime = written) -> Run:
            return _read_files(path, header, written, at)

        run = FoundRun(header.id, str(path), fingerprint(experiment, state, facts), read)
        found.append((header.start, run))
    yield from (run for _, run in sorted(found, key=lambda each: each[0]))


def _meta(folder: Path) -> dict[str, Any]:
    # Imported here: `det --help` does not need it.
    import yaml

    path = folder / "meta.yaml"
    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f":{mark.line + 1}"
        raise BrokenRunError(f"{path}{place} is not YAML.") from None
    if not isinstance(content, dict):
        raise BrokenRunError(f"{path}:1 has no fields.")
    return content


def _header(path: Path, meta: Mapping[str, Any], experiment: str) -> _Header:
    status = meta.get("status")
    start, end = meta.get("start_time"), meta.get("end_time")
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise BrokenRunError(f"{path / 'meta.yaml'}: `start_time` and `end_time` must be whole numbers.")
    return _Header(
        id=str(meta.get("run_id") or meta.get("run_uuid") or path.name),
        name=str(meta.get("run_name") or meta.get("name") or ""),
        experiment=experiment,
        status=_NUMBERED.get(status, "") if isinstance(status, int) else str(status),
        start=start,
        end=end,
    )


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their names; a name with slashes is stored in folders."""
    if not folder.is_dir():
        return {}
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _read_files(path: Path, header: _Header, written: datetime, at: datetime) -> Run:
    is_open = _STATES.get(header.status) == ACTIVE
    series = {name: _series(file, is_open=is_open) for name, file in _files(path / "metrics").items()}
    params = {name: _text(file) for name, file in _files(path / "params").items()}
    tags = {name: _text(file) for name, file in _files(path / "tags").items()}
    return header.run(params, tags, series, written, at)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise BrokenRunError(f"{path}, byte {error.start}: not UTF-8.") from None
    except OSError as error:
        raise BrokenRunError(f"{path} cannot be read: {error.strerror}.") from None


def _series(path: Path, *, is_open: bool) -> Series:
    """Return the points of a file of lines ``timestamp value step``; more fields name a data set."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BrokenRunError(f"{path} cannot be read: {error.strerror}.") from None
    if is_open and not content.endswith(b"\n"):
        # A line that is being written.
        content = content[: content.rfind(b"\n") + 1]
    fields = content.split()
    if len(fields) == 3 * (content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))):
        # Whole columns at once: a file has tens of thousands of lines.
        with contextlib.suppress(ValueError):
            return Series.of(
                list(map(int, fields[2::3])),
                list(map(int, fields[0::3])),
                list(map(float, fields[1::3])),
                _MICROSECONDS,
            )
    return _by_line(path, content)


def _by_line(path: Path, content: bytes) -> Series:
    steps, times, values = [], [], []
    for number, line in enumerate(content.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        try:
            # Before steps existed, there were two fields.
            time, value, step = int(parts[0]), float(parts[1]), int(parts[2]) if len(parts) > 2 else 0
        except (ValueError, IndexError):
            shown = line[:60].decode(errors="replace")
            raise BrokenRunError(
                f"{path}:{number}: expected `timestamp value step`, found {shown!r}."
            ) from None
        steps.append(step)
        times.append(time)
        values.append(value)
    try:
        return Series.of(steps, times, values, _MICROSECONDS)
    except ValueError as error:
        raise BrokenRunError(f"{path}: {error}.") from None


def _group(name: str) -> str:
    return SYSTEM if name.startswith("system/") else group_of(name)


# SQLite files.


def _in_database(path: Path, experiment: str | None, at: datetime) -> Iterator[FoundRun | BrokenRun]:
    # Never written to, even if it lacks an index or has a journal that is left over.
    try:
        with contextlib.closing(_open(path)) as database:
            names = dict(
                database.execute(
                    "SELECT experiment_id, name FROM experiments WHERE lifecycle_stage IS NOT 'deleted'"
                )
            )
            _refuse_unknown(experiment, list(names.values()))
            headers = [
                _Header(row[0], row[1] or "", names[row[2]], str(row[3]), row[4] or 0, row[5])
                for row in database.execute(
                    "SELECT run_uuid, name, experiment_id, status, start_time, end_time FROM runs "
                    "WHERE lifecycle_stage IS NOT 'deleted' ORDER BY start_time, run_uuid"
                )
                if row[2] in names and experiment in (None, names[row[2]])
            ]
            params = _pairs(database, "params")
            tags = _pairs(database, "tags")
            sizes = {
                run: tuple(facts)
                for run, *facts in database.execute(
                    "SELECT run_uuid, count(*), max(rowid), max(timestamp) FROM metrics GROUP BY run_uuid"
                )
            }
    except sqlite3.DatabaseError as error:
        raise WrongPathError(f"{path} is no database of MLflow ({error}). Expected {_EXPECTED}.") from None
    for header in headers:
        size = sizes.get(header.id, (0, 0, header.start))
        written = time_at(max(size[2], header.start) * _MICROSECONDS)
        state = open_state(written, at) if _STATES.get(header.status) == ACTIVE else ""
        facts = [
            (header.name, header.experiment, header.status, header.start, header.end),
            sorted(params[header.id].items()),
            sorted(tags[header.id].items()),
            size,
        ]

        def read(header: _Header = header, written: datetime = written) -> Run:
            series = _of_run(path, header.id)
            return header.run(params[header.id], tags[header.id], series, written, at)

        yield FoundRun(header.id, f"{path}, run {header.id}", fingerprint(state, facts), read)


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)


def _pairs(database: sqlite3.Connection, table: str) -> dict[str, dict[str, str]]:
    """Return keys and values by run."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for run, key, value in database.execute(f"SELECT run_uuid, key, value FROM {table}"):
        found[run][key] = "" if value is None else str(value)
    return found


def _of_run(path: Path, run_id: str) -> dict[str, Series]:
    columns: dict[str, tuple[list[int], list[int], list[float]]] = {}
    query = (
        "SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, rowid"
    )
    try:
        with contextlib.closing(_open(path)) as database:
            for key, step, timestamp, value, is_nan in database.execute(query, (run_id,)):
                steps, times, values = columns.setdefault(key, ([], [], []))
                steps.append(int(step))
                times.append(timestamp)
                values.append(_value(value, is_nan))
        return {key: Series.of(*lists, _MICROSECONDS) for key, lists in columns.items()}
    except (sqlite3.DatabaseError, TypeError, ValueError) as error:
        raise BrokenRunError(f"{path}, run {run_id}: {error}.") from None


def _value(value: float, is_nan: object) -> float:
    if is_nan:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else float(value)
