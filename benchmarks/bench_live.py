"""What an open page costs while a trial reports: requests and bytes of a minute, in a browser.

The page of a trial with eight metrics, which reports every second; it has reported 500 times before. Needs a Chromium
and Playwright (`tests/browser/install.sh`, group `test`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import threading
import time

from bench_master import Client
from bench_web import _NAMES, _add, our_master
from measure import report

MINUTE_S = 60.0
METRICS = 8
BEFORE = 500
_CONFIG = "name: live\nentrypoint: x\nsearcher: {name: single, metric: m0}\n"


def _report(client: Client, trial: int, step: int) -> None:
    metrics = {f"m{number}": (step * 7919 % 1000) / 1000 + number for number in range(METRICS)}
    body = {
        "metrics": {
            "trialId": trial,
            "stepsCompleted": step,
            "trialRunId": 0,
            "metrics": {"avgMetrics": metrics},
        },
        "group": "validation",
    }
    client.raw("POST", f"/api/v1/trials/{trial}/metrics", body)


def main() -> None:
    """Measure and report."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        print("live: needs a Chromium (tests/browser/install.sh) and Playwright.", file=sys.stderr)
        return
    # Imported here: only those who measure pages have it.
    from playwright.sync_api import sync_playwright

    with our_master() as (home, url), sync_playwright() as playwright:
        login = home.token_file.read_text().strip()
        client = Client(int(url.rpartition(":")[2]), {"Authorization": f"Bearer {login}"})
        made = client.call("POST", "/api/v1/experiments", {"config": _CONFIG, "activate": False})
        trial = made["experiment"]["trialIds"][0]
        for step in range(1, BEFORE):
            _report(client, trial, step)
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": "auth", "value": login, "domain": "127.0.0.1", "path": "/"}])
        page = context.new_page()
        page.goto(f"{url}/trials/{trial}")
        page.wait_for_function("() => document.querySelector('.card.searched')?.dataset.lines >= 1")
        page.wait_for_timeout(3000)
        size, requests = [0.0], [0.0]
        wire = context.new_cdp_session(page)
        wire.send("Network.enable")
        wire.on("Network.dataReceived", lambda event: _add(size, event["encodedDataLength"]))
        wire.on("Network.requestWillBeSent", lambda _: _add(requests, 1))
        is_over = threading.Event()

        def train() -> None:
            own = Client(int(url.rpartition(":")[2]), {"Authorization": f"Bearer {login}"})
            step = BEFORE
            while not is_over.wait(1.0):
                _report(own, trial, step)
                step += 1

        reporting = threading.Thread(target=train)
        reporting.start()
        began = time.monotonic()
        while time.monotonic() - began < MINUTE_S:
            page.wait_for_timeout(200)
        is_over.set()
        reporting.join()
        report("a live page for a minute: requests", requests[0], goal=20.0)
        report("a live page for a minute: bytes", size[0] / 1e6, unit="MB", goal=0.1)
        browser.close()


if __name__ == "__main__":
    main()
