"""Links to reports: made and revoked on the page of the experiment, opened by readers without a login."""

from __future__ import annotations

import pytest
from master.conftest import RealMaster
from playwright.sync_api import expect

from browser.conftest import log_in
from browser.data import named_search
from browser.watch import accessibility_faults
from det_keras.home import Home
from det_keras.launch.network import free_port
from det_keras.master.process import MasterOptions


@pytest.fixture(scope="module")
def sharing(tmp_path_factory):
    """A master that serves shared links."""
    options = MasterOptions(port=free_port("127.0.0.1"), shared_links=True)
    master = RealMaster(Home(tmp_path_factory.mktemp("sharing")).create(), options=options)
    yield master
    master.close()


@pytest.fixture(scope="module")
def search(sharing):
    return named_search(sharing, "<b>digits</b>")


PHONE = {"viewport": {"width": 390, "height": 844}}
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("screen", [{}, PHONE], ids=["desk", "phone"])
def test_link_is_made_read_by_a_stranger_and_revoked(new_page, sharing, search, screen):
    page = new_page(sharing, **screen)
    log_in(page, sharing)
    page.goto(f"/experiments/{search.number}")
    page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("There is no link.")
    dialog.get_by_label("Days until it ends").fill("30")
    dialog.get_by_role("button", name="Make a link").click()
    field = dialog.get_by_label("The link, which is shown only now")
    expect(field).to_be_visible()
    link = field.input_value()
    assert link.startswith(f"{sharing.running.url}/shared/")
    expect(dialog.get_by_role("listitem")).to_contain_text("by determined, made")
    assert accessibility_faults(page) == []
    assert page.evaluate(TOO_WIDE) <= 0

    reader = new_page(sharing, **screen)
    reader.goto(link)
    for canvas in reader.locator("[data-report-figure]").all():
        expect(canvas.locator("canvas, svg").first).to_be_visible()
    assert reader.context.cookies() == []
    assert reader.evaluate("() => performance.getEntriesByType('resource').length") == 0
    assert reader.locator("a").count() == 0
    assert accessibility_faults(reader) == []
    assert reader.evaluate(TOO_WIDE) <= 0

    # The link is shown once.
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Share", exact=True).click()
    expect(dialog.get_by_role("listitem")).to_contain_text("until")
    expect(field).to_be_hidden()
    dialog.get_by_role("button", name="Revoke link").click()
    expect(dialog).to_contain_text("There is no link.")
    with reader.watch.forgiving("404"):
        reader.reload()
    expect(reader.locator("body")).to_have_text("There is no such page.")


def test_dialog_says_how_the_administrator_allows_links(page, site):
    number = site.client.create(activate=False)
    page.goto(f"/experiments/{number}")
    page.get_by_role("button", name="Share", exact=True).click()
    with page.watch.forgiving("400"):
        page.get_by_role("button", name="Make a link").click()
        expect(page.get_by_role("alert")).to_contain_text("det deploy local cluster-up --shared-links")
