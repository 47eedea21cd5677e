"""Changes the package in small ways, one at a time, and looks whether the tests find each change.

cosmic-ray makes the changes (mutants). This script draws a sample of them with a seed, at most one for each place in
the code, without those that change nothing by construction. Each runs only the tests that execute the changed line,
as a coverage measurement by test has recorded, the fastest first. All works in ``build/mutation``, with a copy of the
repository; every step continues where it was stopped.

Each test run is a fork of a process that has imported TensorFlow without using it, as the import takes longer than
most of the tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import cosmic_ray.plugins
import pytest
import tomllib
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((Path(__file__).parent / "config.toml").read_text(encoding="utf-8"))
WORK = ROOT / "build" / "mutation"
TREE = WORK / "tree"
# The package as it was when the mutants were drawn.
ORIGINAL = WORK / "original"
RECORDS = WORK / "records"
SESSION = WORK / "session.sqlite"
MUTANTS = WORK / "mutants.sqlite"
_COPIED = ["benchmarks", "configs", "det_keras", "docs", "examples", "tests", "pyproject.toml", "README.md"]
# Imported once, before the forks. Nothing of det_keras, as each fork must read the changed file.
_PRELOADED = [
    "alembic.command",
    "fastapi.testclient",
    "hypothesis",
    "keras",
    "optuna",
    "plotly",
    "tensorflow",
]

Lines = tuple[int, int]


# Drawing mutants.


@dataclass
class Source:
    """A file of the package, and which of its places are not worth changing."""

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def idle(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """The ranges whose change nothing can notice, or nothing should: types, log texts, assertions."""
        nodes: list[ast.expr | ast.stmt | ast.keyword | None] = []
        for node in ast.walk(self.tree):
            match node:
                case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=annotation):
                    nodes.append(annotation)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    nodes += [node.returns, *filter(_is_for_types, node.decorator_list)]
                case ast.Assert():
                    nodes.append(node)
                case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                    nodes.append(node)
                # Texts of the log, and lengths of columns, which SQLite ignores.
                case ast.Call() if re.match(r"(_?log|logger)\.|(sa\.)?String$", ast.unparse(node.func)):
                    nodes.append(node)
                case ast.keyword(arg="frozen"):
                    nodes.append(node)
                case ast.Assign() if ast.unparse(node.targets[0]) in ("__all__", "__slots__"):
                    nodes.append(node)
        return [((n.lineno, n.col_offset), (n.end_lineno or 0, n.end_col_offset or 0)) for n in nodes if n]

    def is_idle(self, mutation: MutationSpec) -> bool:
        # The place of a decorator is that of its @, which belongs to no node.
        line, column = mutation.start_pos
        position = (line, column + mutation.operator_name.endswith("RemoveDecorator"))
        return any(start <= position < end for start, end in self.idle)

    def statement(self, line: int) -> tuple[Lines, bool]:
        """Return the lines of the innermost statement, without its body, and whether they are in a function."""
        found, inside = (line, line), False
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
                continue
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if line <= max(last, node.lineno):
                found = (node.lineno, max(last, node.lineno))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = True
        return found, inside


def _is_for_types(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).split(".")[-1] in ("abstractmethod", "overload", "override")


@cache
def source(path: Path) -> Source:
    return Source(path)


def draw(count: int) -> None:
    """Put the first `count` mutants of the shuffled ones into the session; those that are there keep their result."""
    if SESSION.exists():
        with use_db(SESSION, WorkDB.Mode.open) as session:
            if session.num_work_items >= count:
                return
    _copy()
    files = sorted(path for name in CONFIG["packages"] for path in (TREE / "det_keras" / name).rglob("*.py"))
    specs = _all_mutants(files)
    specs.sort(key=lambda spec: (str(spec.module_path), spec.start_pos, spec.operator_name, spec.occurrence))
    skipped = re.compile(f"_({'|'.join(CONFIG['skipped_operators'])})$")
    places: dict[tuple[object, ...], list[MutationSpec]] = defaultdict(list)
    for spec in specs:
        if not (skipped.search(spec.operator_name) or source(TREE / spec.module_path).is_idle(spec)):
            family = spec.operator_name.split("_")[0]
            places[spec.module_path, spec.start_pos, spec.end_pos, family].append(spec)
    stream = random.Random(CONFIG["seed"])
    drawn = [stream.choice(alike) for alike in places.values()]
    stream.shuffle(drawn)
    print(f"{len(specs)} mutants, {len(drawn)} places.")
    valid = itertools.islice(filter(_compiles, drawn), count)
    with use_db(SESSION, WorkDB.Mode.create) as session:
        for number, spec in enumerate(valid):
            if number >= session.num_work_items:
                session.add_work_item(WorkItem.single(f"{number:04}", spec))


def _all_mutants(files: list[Path]) -> list[MutationSpec]:
    if not MUTANTS.exists():
        part = MUTANTS.with_suffix(".part")
        part.unlink(missing_ok=True)
        with contextlib.chdir(TREE), use_db(part, WorkDB.Mode.create) as everything:
            init([path.relative_to(TREE) for path in files], everything, {})
        part.rename(MUTANTS)
    # Without cosmic-ray's own reader, which makes a query for each mutant.
    names = "module_path, operator_name, occurrence, start_pos_row, start_pos_col, end_pos_row, end_pos_col"
    with contextlib.closing(sqlite3.connect(MUTANTS)) as connection:
        rows = connection.execute(f"SELECT {names} FROM mutation_specs").fetchall()
    return [MutationSpec(*row[:3], start_pos=row[3:5], end_pos=row[5:7]) for row in rows]


def _compiles(mutation: MutationSpec) -> bool:
    """Return whether a mutant is Python: cosmic-ray takes the stars of arguments for operators."""
    with contextlib.suppress(SyntaxError):
        ast.parse(mutated(mutation, (TREE / mutation.module_path).read_text(encoding="utf-8")))
        return True
    return False


def mutated(mutation: MutationSpec, original: str) -> str:
    """Return the text of a file with a change."""
    operator = cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)
    changed: str = mutate_code(original, operator, mutation.occurrence)
    return changed


def _copy() -> None:
    """Copy the repository, but the package as it was at the first call: that is what the mutants belong to."""
    if not ORIGINAL.exists():
        shutil.copytree(ROOT / "det_keras", ORIGINAL, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _COPIED:
        old, new = TREE / name, ORIGINAL if name == "det_keras" else ROOT / name
        if old.is_dir():
            shutil.rmtree(old)
        TREE.mkdir(parents=True, exist_ok=True)
        if new.is_dir():
            shutil.copytree(new, old, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(new, old)


# Running tests.


class Recorder:
    """A plugin that writes how long each test took, and which failed first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps({"seconds": self.seconds, "failed": self.failed}))


def run_tests(arguments: list[str], log: Path, limit_s: float) -> int | None:
    """Run pytest in a fork, in the copy; return its exit code, or None if it took too long."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(TREE)
        os.environ.update(PYTHONPATH=str(TREE), DET_KERAS_TEST_AMOUNT="few")
        sys.path.insert(0, str(TREE))
        code = 70
        with contextlib.suppress(BaseException):
            options = ["-p", "no:cacheprovider", "--hypothesis-seed=0"]
            code = pytest.main([*options, *arguments], plugins=[Recorder(log.with_suffix(".json"))])
        os._exit(code)
    end = time.monotonic() + limit_s
    status = None
    while status is None and time.monotonic() < end:
        time.sleep(0.02)
        done, value = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(value) if done else None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


# Recording which tests execute a line.


def record(only: str) -> None:
    """Run the tests of each file whose text is not recorded yet, and record the lines that each test executes."""
    _copy()
    RECORDS.mkdir(parents=True, exist_ok=True)
    for path in _test_files():
        base = _record_of(path)
        if only not in str(path) or base.with_suffix(".json").exists():
            continue
        for old in RECORDS.glob(f"{base.name.rpartition('-')[0]}-*"):
            old.unlink()
        begin = time.monotonic()
        os.environ["COVERAGE_FILE"] = str(base.with_suffix(".coverage"))
        options = ["--cov=det_keras", "--cov-context=test", "--cov-report=", "--timeout=120"]
        code = run_tests([*options, "-m", markers(), str(path)], base.with_suffix(".log"), limit_s=1800)
        print(f"{path}: exit code {code}, {time.monotonic() - begin:.0f} s", flush=True)


def markers() -> str:
    """Return which tests are recorded."""
    return f"fast and {CONFIG['markers']}" if CONFIG["only_fast"] else CONFIG["markers"]


def _test_files() -> list[Path]:
    files = [
        path.relative_to(TREE)
        for folder in CONFIG["tests"]
        for path in sorted((TREE / folder).rglob("test_*.py"))
    ]
    return [path for path in files if str(path) not in CONFIG["without"]]


def _flat(path: Path) -> str:
    return "-".join(path.with_suffix("").parts)


def _record_of(path: Path) -> Path:
    tier = "fast-" if CONFIG["only_fast"] else ""
    return RECORDS / f"{tier}{_flat(path)}-{hashlib.sha256((TREE / path).read_bytes()).hexdigest()[:12]}"


class Record:
    """All that was recorded."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._by_line: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for file in filter(Path.exists, (_record_of(path).with_suffix(".json") for path in _test_files())):
            found = json.loads(file.read_text())
            self.seconds.update({k: v for k, v in found["seconds"].items() if k not in found["failed"]})
            # Tests that execute nothing of the package leave no file.
            data = CoverageData(str(file.with_suffix(".coverage")))
            data.read()
            for name in data.measured_files():
                for line, contexts in data.contexts_by_lineno(name).items():
                    self._by_line[name][line] |= set(contexts)

    def tests(self, mutation: MutationSpec) -> list[str]:
        """Return the tests that execute a mutant: those of the mirrored file first, then the fastest."""
        path = TREE / mutation.module_path
        (first, last), is_in_function = source(path).statement(mutation.start_pos[0])
        by_line = self._by_line.get(str(path), {})
        lines = range(first, last + 1) if is_in_function else by_line
        contexts = {context for line in lines for context in by_line.get(line, ())}
        found: set[str] = set()
        for context in contexts - {""}:
            test, _, phase = context.rpartition("|")
            # What a fixture executes may be what all tests of the file use.
            found |= (
                {one for one in self.seconds if one.split("::")[0] == test.split("::")[0]}
                if phase == "setup"
                else {test}
            )
        mirror = f"/test_{path.stem}.py"
        # A test of a constant need not execute anything.
        found |= set() if is_in_function else {test for test in self.seconds if mirror in test}
        ordered = sorted(found & self.seconds.keys(), key=lambda one: (mirror not in one, self.seconds[one]))
        chosen, total = [], 0.0
        for test in ordered:
            total += self.seconds[test]
            if total <= CONFIG["most_seconds"] or not chosen:
                chosen.append(test)
        return chosen


# Running mutants.


@contextlib.contextmanager
def applied(mutation: MutationSpec) -> Iterator[str]:
    """Change the copy; what the compiler has stored of the file is removed, as it looks only at seconds and sizes."""
    path = TREE / mutation.module_path
    original = path.read_text(encoding="utf-8")
    changed = mutated(mutation, original)
    compiled = Path(importlib.util.cache_from_source(str(path)))
    compiled.unlink(missing_ok=True)
    try:
        path.write_text(changed, encoding="utf-8")
        yield _change(original, changed)
    finally:
        path.write_text(original, encoding="utf-8")
        compiled.unlink(missing_ok=True)


def _change(original: str, changed: str) -> str:
    pairs = zip(original.splitlines(), changed.splitlines(), strict=False)
    number, (old, new) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return f"{number}\n- {old.strip()}\n+ {new.strip()}"


def run(only: str, again: bool) -> None:
    """Run the mutants without a result; with `again`, those that survived too."""
    # A run that was killed may have left a changed file.
    _copy()
    recorded = Record()
    with use_db(SESSION, WorkDB.Mode.open) as session:
        results = {item.job_id: result for item, result in session.completed_work_items}
        for item in _in_order(session):
            mutation = item.mutations[0]
            known = results.get(item.job_id)
            if only not in str(mutation.module_path) or (known and (known.is_killed or not again)):
                continue
            begin = time.monotonic()
            result = _run_one(mutation, recorded)
            session.set_result(item.job_id, result)
            print(
                f"{item.job_id} {result.test_outcome.value} {time.monotonic() - begin:.1f} s {mutation.module_path}:"
                f"{result.diff.splitlines()[0]} {result.output}",
                flush=True,
            )


def _in_order(session: WorkDB) -> list[WorkItem]:
    order = {name: number for number, name in enumerate(CONFIG["packages"])}
    return sorted(
        session.work_items, key=lambda item: (order[item.mutations[0].module_path.parts[1]], item.job_id)
    )


def _run_one(mutation: MutationSpec, recorded: Record) -> WorkResult:
    tests = recorded.tests(mutation)
    durations = [recorded.seconds[test] for test in tests]
    # A test that hangs ends itself; the limit of all is for those that cannot.
    hangs = [f"--timeout={20 + 3 * max(durations):.0f}"] if tests else []
    path = str(mutation.module_path)
    others = [test for part, names in CONFIG["others"].items() if part in path for test in names]
    tier = ["-m", "fast"] if CONFIG["only_fast"] else []
    runs = [([*hangs, *tests], 30 + 3 * sum(durations))] * bool(tests)
    runs += [([*tier, *others], 600.0)] * bool(others)
    log = WORK / "last.log"
    log.with_suffix(".json").unlink(missing_ok=True)
    with applied(mutation) as change:
        for names, limit_s in runs:
            code = run_tests(["-x", "-q", *names], log, limit_s)
            if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                return WorkResult(WorkerOutcome.NORMAL, _reason(code, log), TestOutcome.KILLED, change)
    if not runs:
        return WorkResult(WorkerOutcome.NO_TEST, "no test executes it", TestOutcome.SURVIVED, change)
    text = " ".join([f"{len(tests)} tests", *others])
    return WorkResult(WorkerOutcome.NORMAL, text, TestOutcome.SURVIVED, change)


def _reason(code: int | None, log: Path) -> str:
    """Return the test that failed."""
    with contextlib.suppress(FileNotFoundError):
        for test in json.loads(log.with_suffix(".json").read_text())["failed"]:
            return str(test)
    return "timeout" if code is None else f"exit code {code}"


def report() -> None:
    """Print the survivors, with the reason where one cannot be found, and the numbers by package."""
    reasons = {(one["path"], one["new"]): one["reason"] for one in CONFIG["equivalent"]}
    numbers: dict[str, Counter[str]] = defaultdict(Counter)
    with use_db(SESSION, WorkDB.Mode.open) as session:
        for item, result in sorted(session.completed_work_items, key=lambda pair: pair[0].job_id):
            path = item.mutations[0].module_path
            reason = reasons.get((str(path), result.diff.split("+ ")[-1]))
            outcome = "found" if result.is_killed else "equivalent" if reason else "survived"
            for name in (path.parts[1], "all"):
                numbers[name].update([outcome, *(["timeout"] if result.output == "timeout" else [])])
            if outcome != "found":
                print(f"{item.job_id} {path}:{result.diff}\n  {result.output}. {reason or ''}\n")
        left = session.num_work_items - session.num_results
    for name, counts in numbers.items():
        share = counts["found"] / max(counts["found"] + counts["survived"], 1)
        print(
            f"{name}: {counts['found']} found ({counts['timeout']} by timeout), {counts['survived']} survived, "
            f"{counts['equivalent']} equivalent; {share:.0%} of those that are not equivalent"
        )
    print(f"{left} not run yet.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", help="draw, record, run, report; default: all of them")
    parser.add_argument("--count", type=int, default=CONFIG["count"], help="how many mutants")
    parser.add_argument("--only", default="", metavar="TEXT", help="run those with this text in their path")
    parser.add_argument(
        "--tests", default="", metavar="TEXT", help="record tests with this text in their path"
    )
    parser.add_argument("--again", action="store_true", help="run those that survived again")
    parser.add_argument("--fast", action="store_true", help="record and run the fast tests only")
    arguments = parser.parse_args()
    CONFIG["only_fast"] = arguments.fast
    steps = arguments.steps or ["draw", "record", "run", "report"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "draw" in steps:
        draw(arguments.count)
    if "record" in steps or "run" in steps:
        for name in _PRELOADED:
            importlib.import_module(name)
    if "record" in steps:
        record(arguments.tests)
    if "run" in steps:
        run(arguments.only, arguments.again)
    if "report" in steps:
        report()


if __name__ == "__main__":
    main()
