"""The page of workspaces and projects, and experiments that are moved between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from playwright.sync_api import expect

from det_keras.home import Home


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master of its own: its projects are counted."""
    master = RealMaster(Home(tmp_path_factory.mktemp("projects")).create())
    yield master
    master.close()


def open_projects(page):
    page.goto("/projects")
    return page.locator("#workspaces")


def make(page, word, name):
    page.get_by_role("button", name=word, exact=True).last.click()
    page.get_by_label("Name", exact=True).fill(name)
    page.locator("#ask-yes").click()


@pytest.fixture
def sorted_site(page, site):
    """A workspace `team` with the projects `digits` and `my letters`."""
    listed = open_projects(page)
    if not listed.get_by_text("my letters").count():
        page.get_by_role("button", name="New workspace").click()
        page.get_by_label("Name", exact=True).fill("team")
        page.locator("#ask-yes").click()
        expect(listed.get_by_role("heading", name="team")).to_be_visible()
        for name in ("digits", "my letters"):
            make(page, "New project", name)
            expect(listed.get_by_role("link", name=name)).to_be_visible()
    return listed


def test_projects_are_made_and_lead_to_their_experiments(page, site, sorted_site):
    number = site.client.create(activate=False)
    site.client.create(activate=False)
    page.goto(f"/experiments?q=id={number}")
    page.locator("#experiments tbody input[type=checkbox]").check()
    page.get_by_role("button", name="Move 1").click()
    page.get_by_label("Workspace/project").fill("team/nowhere")
    page.locator("#ask-yes").click()
    expect(page.locator("#said")).to_contain_text("There is no project team/nowhere")
    page.get_by_role("button", name="Move 1").click()
    page.get_by_label("Workspace/project").fill("team/my letters")
    page.locator("#ask-yes").click()
    expect(page.locator("#said")).to_contain_text("Move: done.")
    open_projects(page).get_by_role("link", name="my letters").click()
    expect(page.locator("#experiments tbody tr")).to_have_count(1)
    expect(page.locator(f"#experiments tbody a[href='/experiments/{number}']").first).to_be_visible()
    page.goto(f"/experiments/{number}")
    expect(page.locator(".crumbs")).to_contain_text("team / my letters")


def test_page_follows_what_others_do(page, site, sorted_site):
    (team,) = [one for one in site.client.get("/api/v1/workspaces")["workspaces"] if one["name"] == "team"]
    site.client.post(f"/api/v1/workspaces/{team['id']}/projects", {"name": "from elsewhere"})
    expect(sorted_site.get_by_role("link", name="from elsewhere")).to_be_visible()


def test_workspace_is_archived_and_deleted_on_the_page(page, site):
    listed = open_projects(page)
    page.get_by_role("button", name="New workspace").click()
    page.get_by_label("Name", exact=True).fill("short")
    page.locator("#ask-yes").click()
    section = listed.locator("section", has=page.get_by_role("heading", name="short"))
    section.get_by_role("button", name="Archive").click()
    expect(section.get_by_role("heading")).to_contain_text("archived")
    expect(section.get_by_role("button", name="New project")).to_have_count(0)
    section.get_by_role("button", name="Unarchive").click()
    expect(section.get_by_role("heading")).not_to_contain_text("archived")
    section.get_by_role("button", name="Delete").click()
    page.locator("#ask-yes").click()
    expect(section).to_have_count(0)
