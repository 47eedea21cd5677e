"""The original client, as the package index has it, in an environment of its own, and a master to drive."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from master.conftest import RealMaster
from master.fakes import eventually

HERE = Path(__file__).parent
_INSTALL_S = 600
_UNREACHABLE = re.compile(
    r"dns error|failed to lookup|name resolution|Network is unreachable|ConnectTimeout|NewConnectionError"
    r"|Connection refused|error sending request|timed out",
    re.IGNORECASE,
)


def make_environment(root: Path) -> None:
    """Make the client's environment; half of one is never left behind.

    Its versions are pinned, so that only a change of ours can break these tests.
    """
    if (root / "complete").exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True, timeout=_INSTALL_S)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    python = str(root / "bin" / "python")
    install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    done = subprocess.run(
        [*install, "--no-deps", "-r", str(HERE / "requirements.txt")],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
    )
    if done.returncode != 0:
        # In CI a test that is not run is a test that fails.
        if _UNREACHABLE.search(done.stderr) and not os.environ.get("CI"):
            pytest.skip(f"The package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        pytest.fail(f"The original client cannot be installed:\n{done.stdout}{done.stderr}")
    (root / "complete").touch()


@pytest.fixture(scope="session")
def stock_python(request) -> Path:
    """The interpreter of the environment that the original client is in; it survives between runs."""
    if sys.version_info < (3, 11):
        pytest.skip("The pinned dependencies of the original client need Python 3.11 or newer.")
    root = Path(request.config.cache.mkdir("determined-0.38.1"))
    # Test runs side by side share the environment: the first makes it, the others wait.
    with (root.parent / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_environment(root)
    return root / "bin" / "python"


@dataclass(frozen=True)
class Done:
    """What became of one command."""

    code: int
    out: str
    err: str


class StockDet:
    """The original client's `det`, logged in as somebody by what `det deploy local credentials` prints.

    Args:
        python: of the client's environment.
        master: that it drives.
        directory: where the commands run, and where the client keeps its tokens.
    """

    def __init__(self, python: Path, master: RealMaster, directory: Path) -> None:
        self.python = python
        self.master = master
        self.directory = directory
        names = ("PATH", "TMPDIR", "LANG")
        self.environment = {name: os.environ[name] for name in names if name in os.environ}
        # Wide tables: nothing is cut that a test looks for.
        self.environment.update({"HOME": str(directory), "COLUMNS": "250"})
        self.environment.update(credentials(master.home.root))
        self._driver = self.start(str(HERE / "driver.py"), start_new_session=True)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python in the client's environment."""
        return subprocess.Popen(
            [str(self.python), *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def __call__(self, *arguments: str, typed: str = "") -> Done:
        """Run `det` with `arguments`."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"arguments": arguments, "input": typed}) + "\n")
        self._driver.stdin.flush()
        return Done(**json.loads(self._driver.stdout.readline()))

    def out(self, *arguments: str, typed: str = "") -> str:
        """Return what a command prints; it has to succeed, and to complain of nothing."""
        done = self(*arguments, typed=typed)
        assert done.code == 0, done
        assert "Traceback" not in done.err, done.err
        return done.out

    def refused(self, *arguments: str, typed: str = "") -> str:
        """Return what a command says when it fails, which it has to."""
        done = self(*arguments, typed=typed)
        assert done.code not in (0, 70), done
        return done.out + done.err

    def table(self, *arguments: str) -> list[dict[str, str]]:
        """Return the rows of the table that a command prints."""
        return tables(self.out(*arguments))[0]

    def sdk(self, script: str) -> Any:
        """Run lines of Python with `client` of the SDK at hand; return what they leave in `result`."""
        lines = [
            "import json",
            "from determined.experimental import client",
            textwrap.dedent(script),
            "print(json.dumps(result))",
        ]
        done = subprocess.run(
            [str(self.python), "-c", "\n".join(lines)],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def finish(self, number: int | str) -> None:
        """Return when an experiment is complete; the client's own `wait` looks every five seconds."""
        self.master.client.wait_for_state(int(number), "COMPLETED", 60)

    def write(self, name: str, text: str) -> str:
        (self.directory / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    def close(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait(timeout=60)


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return all tables in a text; cells that go on in a further line are joined."""
    lines = text.splitlines()
    found = []
    for i, line in enumerate(lines):
        if not re.fullmatch(r"-+(\+-+)+", line.strip()) or i == 0:
            continue
        names = _cells(lines[i - 1])
        rows: list[dict[str, str]] = []
        for cells in map(_cells, _until_blank(lines[i + 1 :])):
            if cells[0] or not rows:
                rows.append(dict(zip(names, cells, strict=True)))
            else:
                for name, cell in zip(names, cells, strict=True):
                    rows[-1][name] = f"{rows[-1][name]} {cell}".strip()
        found.append(rows)
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _until_blank(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if "|" not in line:
            return
        yield line


def credentials(home: Path) -> dict[str, str]:
    """Return the variables that `det deploy local credentials` prints for other clients."""
    done = subprocess.run(
        [sys.executable, "-m", "det_keras.cli", "deploy", "local", "credentials"],
        env={**os.environ, "DET_KERAS_HOME": str(home), "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(re.findall(r"^export (\w+)=(.*)$", done.stdout, re.MULTILINE))


CONFIG = """\
    name: {name}
    entrypoint: {python} script.py
    hyperparameters: {{steps: {steps}, ends_badly: {ends_badly}}}
    searcher: {{name: single, metric: loss, smaller_is_better: true}}
    resources: {{slots_per_trial: 1}}
    max_restarts: {restarts}
    checkpoint_storage: {{type: directory, container_path: {storage}, save_trial_latest: 5}}
"""


def write_experiment(stock: StockDet, name: str, **values: Any) -> str:
    """Write a config for `script.py`, and return its name."""
    defaults = {"steps": 20, "ends_badly": "false", "restarts": 0, "storage": stock.directory / "storage"}
    return stock.write(
        f"{name}.yaml", CONFIG.format(name=name, python=stock.python, **{**defaults, **values})
    )


@pytest.fixture(scope="session")
def stock_master(tmp_path_factory) -> Iterator[RealMaster]:
    """A fresh master, shared by all tests here: none of them ends it."""
    from det_keras.home import Home
    from det_keras.master.process import MasterOptions

    home = Home(tmp_path_factory.mktemp("stock")).create()
    with pytest.MonkeyPatch.context() as patch:
        # Receivers of webhooks are on this machine.
        patch.setenv("DET_KERAS_WEBHOOK_NETWORKS", "127.0.0.0/8,::1/128")
        master = RealMaster(home, options=MasterOptions(info_mounts=True))
    yield master
    master.close()


@pytest.fixture(scope="session")
def stock(stock_python, stock_master, tmp_path_factory) -> Iterator[StockDet]:
    """`det` of the original client against the master; `script.py` lies in its directory."""
    directory = tmp_path_factory.mktemp("client")
    shutil.copy(HERE / "script.py", directory)
    client = StockDet(stock_python, stock_master, directory)
    yield client
    client.close()


@pytest.fixture(scope="session")
def done_experiment(stock) -> int:
    """The number of an experiment that ran to its end: 20 steps, and checkpoints at 10 and 20."""
    write_experiment(stock, "done")
    text = stock.out("experiment", "create", "done.yaml", ".")
    number = int(text.split("Created experiment ")[1].split()[0])
    stock.finish(number)
    return number


@pytest.fixture
def paused_experiment(stock) -> int:
    """The number of an experiment that was made, but does not run."""
    write_experiment(stock, "paused")
    text = stock.out("experiment", "create", "paused.yaml", ".", "--paused")
    return int(text.split("Created experiment ")[1].split()[0])


@pytest.fixture
def until():
    return eventually
