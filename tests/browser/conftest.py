"""A real master, and a real browser that looks at its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest
import warm
from master.conftest import RealMaster
from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, expect, sync_playwright

from browser.watch import Watch
from det_keras.home import Home

_PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "firefox": ("firefox-esr", "firefox"),
}
USUAL_BROWSER = os.environ.get("DET_KERAS_TEST_BROWSER", "chromium")
_CHROMIUM_FLAGS = [
    # What a browser of a person would fetch for itself is nobody's business here.
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    # Containers have little shared memory.
    "--disable-dev-shm-usage",
]
# Of a machine that has other things to do.
_TIMEOUT_MS = 30_000

expect.set_options(timeout=_TIMEOUT_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")
            item.add_marker("process")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take the main paths in each browser."""
    if metafunc.definition.get_closest_marker("main_path"):
        metafunc.parametrize("browser_name", sorted(_PROGRAMS))


@pytest.fixture
def browser_name() -> str:
    """The browser of all other tests."""
    return USUAL_BROWSER


def _missing(name: str, reason: str) -> NoReturn:
    text = f"{reason} `tests/browser/install.sh` installs browsers on Debian and Ubuntu."
    # In CI a test that is not run is a test that fails; but not every distribution has a Firefox.
    if os.environ.get("CI") and name == "chromium":
        pytest.fail(text)
    pytest.skip(text)


def _launch(playwright: Playwright, name: str) -> Browser:
    path = next(filter(None, map(shutil.which, _PROGRAMS[name])), None)
    if path is None:
        _missing(name, f"There is none of {', '.join(_PROGRAMS[name])} on the PATH.")
    try:
        if name == "firefox":
            # The one of the system, over WebDriver BiDi: Playwright's own is a build with patches.
            return playwright.firefox.launch(channel="moz-firefox", executable_path=path)
        # As root, which is what containers run as, Chromium starts only without its sandbox.
        flags = _CHROMIUM_FLAGS + ["--no-sandbox"] * (os.geteuid() == 0)
        return playwright.chromium.launch(executable_path=path, args=flags)
    except Error as error:
        _missing(name, f"{path} does not start: {error.message.splitlines()[0]}")


# Not for the whole session: while it is open, Playwright has an event loop that runs, and nobody else's test could
# start one.
@pytest.fixture(scope="package")
def launched() -> Iterator[Callable[[str], Browser]]:
    """Return a function that returns a browser of the system by its name."""
    with sync_playwright() as playwright:
        browsers: dict[str, Browser] = {}

        def browser_of(name: str) -> Browser:
            if name not in browsers:
                browsers[name] = _launch(playwright, name)
            return browsers[name]

        yield browser_of
        for browser in browsers.values():
            browser.close()


@pytest.fixture
def browser(launched: Callable[[str], Browser], browser_name: str) -> Browser:
    """The browser of this test."""
    return launched(browser_name)


@pytest.fixture(scope="package")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master that the tests here share; one that ends it starts it again."""
    master = RealMaster(Home(tmp_path_factory.mktemp("site")).create())
    yield master
    master.close()


@pytest.fixture
def trainer(tmp_path_factory) -> Iterator[RealMaster]:
    """A master for trials that train with Keras: they are forks, which do not import TensorFlow again."""
    with warm.warm_trials():
        master = RealMaster(Home(tmp_path_factory.mktemp("trainer")).create())
    yield master
    master.close()


@pytest.fixture
def new_page(browser: Browser, site: RealMaster) -> Iterator[Callable[..., Page]]:
    """Open pages of visitors of their own; none of them may log an error or ask another host.

    They are pages of `site`, if no other master is named.
    """
    opened: list[tuple[BrowserContext, Watch]] = []

    def open_page(master: RealMaster = site, **options: object) -> Page:
        options = {"viewport": {"width": 1440, "height": 900}, **options}
        context = browser.new_context(base_url=master.running.url, accept_downloads=True, **options)
        context.set_default_timeout(_TIMEOUT_MS)
        opened.append((context, Watch(context, urlsplit(master.running.url).netloc)))
        page = context.new_page()
        page.watch = opened[-1][1]
        return page

    yield open_page
    for context, _ in opened:
        context.close()
    for _, watch in opened:
        watch.check()


@pytest.fixture
def visitor(new_page: Callable[..., Page]) -> Page:
    """A page of somebody who is not logged in."""
    return new_page()


@pytest.fixture
def page(new_page: Callable[..., Page], site: RealMaster) -> Page:
    """A page of somebody who logged in by the printed address."""
    page = new_page()
    log_in(page, site)
    return page


def log_in(page: Page, site: RealMaster) -> None:
    """Open the address that `det deploy local cluster-up` prints."""
    page.goto(site.client.post("/api/v1/auth/web-code")["url"])
