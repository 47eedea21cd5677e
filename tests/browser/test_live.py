"""A page that is open while trials report."""

from __future__ import annotations

from master.fakes import SINGLE
from playwright.sync_api import expect


def test_many_reports_are_few_requests_and_the_last_is_shown(page, site):
    number = site.client.create(f"{SINGLE}name: live\n", activate=False)
    (trial,) = site.client.trials(number)
    site.client.report(trial["id"], "validation", 1, {"loss": 5.0, "extra": 1.0}, run_id=0)
    page.goto(f"/trials/{trial['id']}")
    expect(page.locator(".card canvas")).to_have_count(2)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for step in range(2, 42):
        site.client.report(trial["id"], "validation", step, {"loss": 5.0 / step, "extra": 1.0}, run_id=0)
    page.wait_for_function("() => document.querySelector('.card.searched')?.card.data.x.at(-1) === 41")
    # At once, and once more when all have come; a few more where reports take long.
    assert len(asked) <= 6, asked
    assert all(address.endswith("/live/parts") for address in asked)
