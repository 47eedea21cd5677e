"""Two experiments side by side: what differs in their configs, their code and their packages."""

from __future__ import annotations

import pytest

from master.fakes import SINGLE, file_entry
from master.test_web_pages import flat, page

OTHER = SINGLE + "max_restarts: 1\nenvironment: {environment_variables: ['API_TOKEN=hunter2']}\n"


@pytest.fixture
def two(world):
    """Return two experiments that differ, each with a trial."""
    files = [
        file_entry("train.py", b"one\n<b>\n"),
        file_entry("data.bin", b"\0\1"),
        file_entry("same.py", b"x"),
    ]
    first = world.client.create(SINGLE, modelDefinition=files)
    files = [
        file_entry("train.py", b"one\n<i>\n"),
        file_entry("data.bin", b"\0\2"),
        file_entry("same.py", b"x"),
    ]
    second = world.client.create(OTHER, modelDefinition=files)
    return first, second, [world.client.trials(number)[0]["id"] for number in (first, second)]


def test_two_experiments_are_compared_by_config_and_code(world, two):
    first, second, trials = two
    for query in (f"experiment={first}&experiment={second}", "&".join(f"trial={trial}" for trial in trials)):
        text = page(world, f"/compare?{query}").text
        assert '<td class="removed">- max_restarts: 5</td><td class="added">+ max_restarts: 1</td>' in flat(
            text
        )
        assert '<span class="removed">-&lt;b&gt;</span>\n<span class="added">+&lt;i&gt;</span>' in text
        assert "data.bin" in text
        assert "Not text." in text
        assert "same.py" not in text
        assert "hunter2" not in text
        assert "Not recorded for both." in text


def test_packages_that_differ_are_a_table(world, two):
    first, second, trials = two
    for trial, version in zip(trials, ("1.26", "2.0"), strict=True):
        record = {"packages": [f"numpy=={version}", "keras==3.12"]}
        world.client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": record})
    text = flat(page(world, f"/compare?experiment={first}&experiment={second}").text)
    assert '<th scope="row">numpy</th><td>1.26</td><td>2.0</td>' in text
    assert '<th scope="row">keras</th>' not in text


def test_only_two_experiments_are_compared_line_by_line(world):
    numbers = [world.client.create() for _ in range(3)]
    for count in (1, 2, 3):
        text = page(world, "/compare?" + "&".join(f"experiment={number}" for number in numbers[:count])).text
        assert ("code-difference" in text) == ("config-difference" in text) == (count == 2)


def test_difference_of_code_is_shown_up_to_a_number_of_lines(world):
    numbers = [
        world.client.create(SINGLE, modelDefinition=[file_entry(name, text) for name in ("a.py", "b.py")])
        for text in (b"", b"".join(b"%d\n" % number for number in range(1500)))
    ]
    text = page(world, f"/compare?experiment={numbers[0]}&experiment={numbers[1]}").text
    assert text.partition('id="code-difference"')[2].count('<span class="added">') == 1998
    assert "Only the first lines" in text
