"""Makes the pictures of `docs/web.md`, from real runs on a master of its own: an adaptive search and a failing trial.

    python docs/images/make.py

Needs a Chromium (`tests/browser/install.sh`), Playwright and scikit-learn (the group `test`); some minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from det_keras.home import Home
from det_keras.master import process

FOLDER = Path(__file__).parent
DIGITS = FOLDER.parents[1] / "examples" / "digits"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_COLUMNS = "id,name,state,val_accuracy,val_loss,learning_rate,optimizer,dropout,filters,duration"
_FAILS = b"""
from sklearn.datasets import load_digits

import det_keras as det

def read(year):
    digits = load_digits()
    if year > 2024:
        raise ValueError(f"There are no digits of {year}; the last ones are of 2024.")
    return digits

context = det.keras.init()
digits = read(year=2025)
"""
_CONFIG = """
name: digits of another year
entrypoint: python3 train.py
searcher: {name: single, metric: val_loss, max_length: {epochs: 2}}
max_restarts: 0
"""


def main() -> None:
    """Run the experiments and take the pictures."""
    path = next(filter(None, map(shutil.which, _NAMES)))
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home").create()
        running = process.start(home, slots=2)
        try:
            environment = {**os.environ, "DET_MASTER": running.url, "DET_KERAS_HOME": str(home.root)}
            failing = Path(folder) / "failing"
            failing.mkdir()
            (failing / "train.py").write_bytes(_FAILS)
            (failing / "config.yaml").write_text(_CONFIG)
            # The search is the first experiment, the failing trial the second.
            det(environment, "experiment", "create", str(DIGITS / "adaptive_asha.yaml"), str(DIGITS))
            det(environment, "experiment", "wait", "1")
            det(environment, "experiment", "create", str(failing / "config.yaml"), str(failing))
            det(environment, "experiment", "wait", "2", check=False)
            with sync_playwright() as playwright:
                flags = ["--no-sandbox"] if os.geteuid() == 0 else []
                browser = playwright.chromium.launch(executable_path=path, args=flags)
                take_pictures(browser, running.url, home.token_file.read_text().strip())
                browser.close()
        finally:
            process.stop(home, kill_tasks=True)


def det(environment: dict[str, str], *arguments: str, check: bool = True) -> None:
    """Run `det` for the master."""
    subprocess.run([sys.executable, "-m", "det_keras", *arguments], env=environment, check=check)


def take_pictures(browser: Browser, url: str, token: str) -> None:
    """Save the pictures, by day and at night."""
    day = open_page(browser, url, token, "light")
    day.goto(f"{url}/experiments/1")
    day.locator(".card.searched canvas").wait_for()
    day.locator(".runs li").first.hover()
    day.wait_for_timeout(500)
    day.screenshot(path=FOLDER / "experiment.png")
    day.goto(f"{url}/experiments/2")
    day.get_by_role("alert").wait_for()
    day.screenshot(path=FOLDER / "failure.png", clip={"x": 0, "y": 0, "width": 1440, "height": 620})
    day.goto(f"{url}/trials?q=state:completed&sort=-val_accuracy&columns={_COLUMNS}")
    boxes = day.get_by_role("checkbox", name="Choose trial")
    boxes.first.wait_for()
    for place in range(4):
        boxes.nth(place).check()
    day.get_by_role("button", name="Draw 4").click()
    day.locator("[data-drawn] canvas").first.wait_for()
    day.mouse.move(0, 0)
    day.wait_for_timeout(500)
    day.screenshot(path=FOLDER / "trials.png")
    night = open_page(browser, url, token, "dark")
    night.goto(f"{url}/experiments/1/search")
    night.locator(".trial-line").first.wait_for()
    night.wait_for_timeout(500)
    night.screenshot(path=FOLDER / "search.png")


def open_page(browser: Browser, url: str, token: str, scheme: str) -> Page:
    """Return a page of a browser that is logged in."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
    context.add_cookies([{"name": "auth", "value": token, "url": url}])
    return context.new_page()


if __name__ == "__main__":
    main()
