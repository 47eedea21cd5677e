"""What the other tests here rely on: that a fault on a page does not stay unseen."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from browser.watch import Watch, accessibility_faults


@pytest.mark.main_path
def test_the_printed_address_logs_in_once(visitor, new_page, site):
    url = site.client.post("/api/v1/auth/web-code")["url"]
    assert visitor.goto(url).ok
    assert "code=" not in visitor.url
    (cookie,) = [one for one in visitor.context.cookies() if one["name"] == "auth"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert visitor.request.get("/api/v1/me").json()["user"]["username"]
    assert new_page().request.get(url).status == 401


@pytest.mark.main_path
def test_errors_and_foreign_requests_are_noted(browser, site):
    context = browser.new_context(base_url=site.running.url)
    watch = Watch(context, urlsplit(site.running.url).netloc)
    page = context.new_page()
    page.goto("about:blank")
    page.set_content(
        "<script>console.error('one'); setTimeout(() => { throw new Error('two') })</script>"
        "<img src='http://example.invalid/three.png'>"
    )
    page.wait_for_load_state("networkidle")
    assert watch.foreign_requests == ["http://example.invalid/three.png"]
    assert any("one" in text for text in watch.errors)
    assert any("two" in text for text in watch.errors)
    context.close()


def test_a_picture_without_words_is_a_fault(visitor):
    visitor.set_content("<html lang=en><title>x</title><main><img src='data:,'></main></html>")
    assert any("image-alt" in fault for fault in accessibility_faults(visitor))
