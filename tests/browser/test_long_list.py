"""A list of ten thousand experiments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from master.conftest import RealMaster
from master.fakes import SINGLE
from playwright.sync_api import expect
from sqlalchemy import create_engine, text

from det_keras.home import Home

COPIES = 10_000


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[RealMaster]:
    """A master with ten thousand experiments, which are in its database before it reads them for the first time."""
    master = RealMaster(Home(tmp_path_factory.mktemp("long")).create())
    master.client.create(f"{SINGLE}name: the first\n", activate=False)
    engine = create_engine(f"sqlite:///{master.home.database}")
    with engine.begin() as connection:
        row = dict(connection.execute(text("SELECT * FROM experiments WHERE id = 1")).mappings().one())
        copies = [
            {**row, "id": 1000 + number, "job_id": f"copy-{number}", "name": f"copy {number}"}
            for number in range(COPIES)
        ]
        columns = ", ".join(f'"{name}"' for name in row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO experiments ({columns}) VALUES ({values})"), copies)
    engine.dispose()
    yield master
    master.close()


def test_any_part_is_shown_and_follows_changes(page, site):
    page.goto("/experiments")
    table = page.locator("#experiments")
    expect(table).to_have_attribute("data-found", str(COPIES + 1))
    page.get_by_role("searchbox", name="Filter").fill("copy id>=10990")
    expect(page.locator("[data-count]")).to_have_text("1 to 10 of 10 experiments, among 10,001 experiments")
    page.goto("/experiments?page=101")
    first = page.locator("#experiments tr[data-key='1']")
    first.get_by_role("checkbox").check()
    site.client.call("PATCH", "/api/v1/experiments/1", {"name": "renamed meanwhile"})
    expect(first).to_contain_text("renamed meanwhile")
    expect(first.get_by_role("checkbox")).to_be_checked()
