"""What a browser gets of the master's pages, and of MLflow's and of Optuna's dashboard on the same numbers.

Two pages: the list of 1,000 experiments, and one plot of 50 trials with 10,000 points each. For each, in a browser
with an empty cache: when something is painted, when what was asked for is there, and how many bytes came over the wire.
Needs a Chromium and Playwright (`tests/browser/install.sh`, group `test`); MLflow as in `bench_master.py`, and Optuna's
dashboard where DET_KERAS_OPTUNA names a Python that has optuna-dashboard.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from bench_master import Client, their_python, their_server
from measure import report

from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines.sqlite import SqliteDatabase
from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.reports.summary import summarise_all

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXPERIMENTS = 1000
TRIALS = 50
POINTS = int(os.environ.get("DET_KERAS_POINTS", "10000"))
TURNS = 3
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_READY_MS = 300_000
# What takes longer is looked at once.
_LONG_MS = 30_000
# Of the list, and of the plot.
_GOALS = ({"until it is there": 0.5, "bytes": 1.0}, {"until it is there": 0.2, "bytes": 0.1})
_SEARCH = f"""
name: plot
entrypoint: x
hyperparameters: {{rate: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: random, metric: loss, max_trials: {TRIALS}, max_concurrent_trials: {TRIALS}}}
"""
# Adds a point to all curves, as a report does, and draws them; uPlot draws in a microtask.
_UPDATE = """async () => {
  const { card } = document.querySelector('.card.searched');
  const times = [];
  for (let turn = 0; turn < 9; turn += 1) {
    card.data.x.push(card.data.x.at(-1) + 1);
    card.data.lines.forEach((line) => line.y.push(line.y.at(-1)));
    const began = performance.now();
    card.draw();
    await new Promise((resolve) => queueMicrotask(() => queueMicrotask(resolve)));
    times.push(performance.now() - began);
  }
  return times.sort((a, b) => a - b)[4];
}"""
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(frozen=True)
class Sight:
    """One opening of a page.

    Attributes:
        paint_s: until anything is painted.
        ready_s: until what was asked for is there.
        size_bytes: that came over the wire.
    """

    paint_s: float
    ready_s: float
    size_bytes: float


def value(trial: int, step: int) -> float:
    """Return what both sides are told: a curve with some noise, that no format can shorten."""
    return trial + 1000.0 / (step + 10) + (step * 7919 % 1000) / 3000.0


def update_ms(browser: Browser, address: str, is_ready: str, login: str) -> float:
    """Return the script time of an update of all curves in an open page, in milliseconds."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_cookies([{"name": "auth", "value": login, "domain": "127.0.0.1", "path": "/"}])
    page = context.new_page()
    page.goto(address)
    page.wait_for_function(is_ready, timeout=_READY_MS)
    found = float(page.evaluate(_UPDATE))
    context.close()
    return found


def look(browser: Browser, address: str, is_ready: str, login: str = "", turns: int = TURNS) -> Sight:
    """Open a page in a new browser context, median of some turns; once if it takes long."""
    seen = []
    for _ in range(turns):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        if login:
            page.context.add_cookies([{"name": "auth", "value": login, "domain": "127.0.0.1", "path": "/"}])
        size = [0.0]
        wire = context.new_cdp_session(page)
        wire.send("Network.enable")
        wire.on("Network.dataReceived", lambda event, size=size: _add(size, event["encodedDataLength"]))
        page.goto(address, wait_until="commit", timeout=_READY_MS)
        page.wait_for_function(is_ready, timeout=_READY_MS)
        ready_ms = page.evaluate("() => performance.now()")
        page.wait_for_function(f"() => ({_PAINT})() !== null")
        seen.append(Sight(page.evaluate(_PAINT) / 1000, ready_ms / 1000, size[0]))
        context.close()
        if ready_ms > _LONG_MS:
            break
    return Sight(*(statistics.median(column) for column in zip(*map(_columns, seen), strict=True)))


def _add(size: list[float], more: float) -> None:
    size[0] += more


def _columns(sight: Sight) -> tuple[float, float, float]:
    return sight.paint_s, sight.ready_s, sight.size_bytes


@contextmanager
def our_master() -> Iterator[tuple[Home, str]]:
    """Run a master; yield its data root and its address."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        running = process.start(home, slots=1)
        try:
            yield home, running.url
        finally:
            process.stop(home, kill_tasks=True)


def our_sights(browser: Browser) -> tuple[Sight, Sight, Sight, float]:
    """Return the list, the plot as it is first drawn and drawn again, and the script time of an update."""
    with our_master() as (home, url):
        login = home.token_file.read_text().strip()
        client = Client(int(url.rpartition(":")[2]), {"Authorization": f"Bearer {login}"})
        plot = client.call("POST", "/api/v1/experiments", {"config": _SEARCH, "activate": False})[
            "experiment"
        ]
        for number in range(1, EXPERIMENTS):
            config = f"name: n{number}\nentrypoint: x\nsearcher: {{name: single, metric: loss}}\n"
            client.raw("POST", "/api/v1/experiments", {"config": config, "activate": False})
        _fill(home, plot["trialIds"])
        rows = (
            f"() => document.getElementById('experiments')?.dataset.found >= {EXPERIMENTS} && "
            "document.querySelectorAll('#experiments tbody tr').length > 50"
        )
        drawn = f"() => document.querySelector('.card.searched')?.dataset.lines >= {TRIALS}"
        listing = look(browser, f"{url}/experiments", rows, login)
        # The second time the master remembers the curves.
        first = look(browser, f"{url}/experiments/{plot['id']}", drawn, login, turns=1)
        address = f"{url}/experiments/{plot['id']}"
        again = look(browser, address, drawn, login)
        return listing, first, again, update_ms(browser, address, drawn, login)


def _fill(home: Home, trial_ids: list[int]) -> None:
    """Store what so many reports would have stored; sent one by one they would take minutes."""
    store = Store(SqliteDatabase(home.database), Notifier())
    for index, trial_id in enumerate(trial_ids):
        reports = [{"loss": value(index, step)} for step in range(POINTS)]
        with store.writing() as tx:
            trial = tx.get_one(TrialRow, trial_id)
            rows = [
                {
                    "trial_id": trial_id, "run_id": 1, "group": "validation", "partition": "validation",
                    "total_batches": step, "archived": False, "metrics": metrics, "searcher_metric": metrics["loss"],
                    "end_time": trial.start_time + timedelta(seconds=step),
                }
                for step, metrics in enumerate(reports)
            ]  # fmt: skip
            tx.execute(MetricRow.__table__.insert(), rows)
            trial.summary_metrics = summarise_all(("validation", metrics) for metrics in reports)
            trial.searcher_metric_value = min(metrics["loss"] for metrics in reports)
            trial.total_batches = POINTS
    store.close()


def their_sights(browser: Browser, python: str) -> tuple[Sight, Sight]:
    """Return MLflow's list of experiments, of which it shows a page, and its plot of the same curves."""
    with their_server(python) as server:
        client = server.connect()
        api = "/api/2.0/mlflow"
        for number in range(1, EXPERIMENTS):
            client.raw("POST", f"{api}/experiments/create", {"name": f"n{number}"})
        runs = [_their_run(client, api, index) for index in range(TRIALS)]
        _fill_theirs(server.database, runs)
        url = f"http://127.0.0.1:{server.port}"
        rows = f"() => document.body.innerText.includes('n{EXPERIMENTS - 1}')"
        listing = look(browser, f"{url}/#/experiments", rows)
        # All that their own links name: the page refuses an address that lacks a part.
        parts = {
            "runs": runs, "metric": "loss", "experiments": ["0"], "plot_metric_keys": ["loss"], "plot_layout": {},
            "deselected_curves": [], "last_linear_y_axis_range": [],
        }  # fmt: skip
        query = "&".join(f"{name}={quote(json.dumps(part))}" for name, part in parts.items())
        plain = "x_axis=step&y_axis_scale=linear&line_smoothness=1&show_point=false"
        address = f"{url}/#/metric?{query}&{plain}"
        drawn = f"() => document.querySelectorAll('.scatterlayer .trace').length >= {TRIALS}"
        return listing, look(browser, address, drawn)


def _their_run(client: Client, api: str, index: int) -> str:
    """Start a run and report its last point, by which MLflow knows the metric; return its id."""
    run = client.call("POST", f"{api}/runs/create", {"experiment_id": "0", "start_time": 0})["run"]["info"]
    step = POINTS - 1
    metric = {"key": "loss", "value": value(index, step), "timestamp": 1000 * step, "step": step}
    client.raw("POST", f"{api}/runs/log-batch", {"run_id": run["run_id"], "metrics": [metric]})
    return str(run["run_id"])


def _fill_theirs(database: Path, runs: list[str]) -> None:
    """Store all other points as MLflow would have stored them."""
    names = "key, value, timestamp, run_uuid, step, is_nan"
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        for index, run in enumerate(runs):
            rows = (("loss", value(index, step), 1000 * step, run, step, False) for step in range(POINTS - 1))
            connection.executemany(f"INSERT INTO metrics ({names}) VALUES (?, ?, ?, ?, ?, ?)", rows)


_STUDIES = f"""
import optuna, sys
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.RDBStorage(sys.argv[1])
study = optuna.create_study(storage=storage, study_name="plot")
space = {{"rate": optuna.distributions.FloatDistribution(0, 1)}}
for index in range({TRIALS}):
    trial = optuna.trial.create_trial(params={{"rate": index / {TRIALS}}}, distributions=space, value=float(index))
    study.add_trial(trial)
for number in range(1, {EXPERIMENTS}):
    storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], f"n{{number}}")
"""
_DASHBOARD = "from optuna_dashboard._cli import main; main()"


def dashboard_sights(browser: Browser, python: str) -> tuple[Sight, Sight]:
    """Return the list of studies of Optuna's dashboard, and its plot of the same curves as intermediate values."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "studies.db"
        subprocess.run([python, "-c", _STUDIES, f"sqlite:///{database}"], check=True)
        with closing(sqlite3.connect(database)) as connection, connection:
            names = "trial_id, step, intermediate_value, intermediate_value_type"
            numbers = [row[0] for row in connection.execute("SELECT trial_id FROM trials ORDER BY trial_id")]
            for index, number in enumerate(numbers):
                rows = ((number, step, value(index, step), "FINITE") for step in range(POINTS))
                connection.executemany(
                    f"INSERT INTO trial_intermediate_values ({names}) VALUES (?, ?, ?, ?)", rows
                )
        with _dashboard(python, database) as url:
            rows = f"() => document.body.innerText.includes('n{EXPERIMENTS - 1}')"
            listing = look(browser, f"{url}/dashboard/", rows)
            lines = "document.querySelectorAll('#graph-intermediate-values .scatterlayer .trace').length"
            return listing, look(browser, f"{url}/dashboard/studies/1", f"() => {lines} >= {TRIALS}")


@contextmanager
def _dashboard(python: str, database: Path) -> Iterator[str]:
    """Run Optuna's dashboard; yield its address."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-c", _DASHBOARD, f"sqlite:///{database}", "--port", str(port), "--host", "127.0.0.1"]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        # It would end what it has begun before it listens to anything softer.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _told(sight: Sight) -> str:
    return f"{sight.paint_s:.2f} s painted, {sight.ready_s:.2f} s there, {sight.size_bytes / 1e6:.2f} MB"


def _compare(name: str, peer: str, ours: Sight, theirs: Sight, goals: dict[str, float]) -> None:
    told = f"ours {_told(ours)}; {peer} {_told(theirs)}"
    parts: dict[str, Callable[[Sight], float]] = {
        "until it is there": lambda sight: sight.ready_s,
        "bytes": lambda sight: sight.size_bytes,
    }
    for part, of in parts.items():
        report(f"{name}: {part}, ours / {peer}", of(ours) / of(theirs), goal=goals.get(part), detail=told)


def main() -> None:
    """Measure both sides and report them."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        print("web: needs a Chromium (tests/browser/install.sh) and Playwright.", file=sys.stderr)
        return
    # Imported here: only those who measure pages have it.
    from playwright.sync_api import sync_playwright

    python = their_python()
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        listing, first, again, update = our_sights(browser)
        names = f"the list of {EXPERIMENTS} experiments", f"a plot of {TRIALS} trials x {POINTS} points"
        for name, sight in zip(names, (listing, again), strict=True):
            report(f"{name}: first paint", sight.paint_s, unit="s", goal=1.0, detail=_told(sight))
        report(f"{names[1]}: until it is there, the first time", first.ready_s, unit="s", detail=_told(first))
        report("update of a live plot: script", update, unit="ms", goal=50.0)
        peers = []
        if (dashboard := os.environ.get("DET_KERAS_OPTUNA")) is not None:
            peers.append(("Optuna's dashboard", dashboard_sights(browser, dashboard)))
        if python is not None:
            peers.append(("MLflow", their_sights(browser, python)))
        for peer, sights in peers:
            for name, ours, theirs, goals in zip(names, (listing, again), sights, _GOALS, strict=True):
                _compare(name, peer, ours, theirs, goals if peer == "MLflow" else {})
        browser.close()


if __name__ == "__main__":
    main()
