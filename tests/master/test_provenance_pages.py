"""What pages show of where experiments, trials and jobs come from."""

from __future__ import annotations

from master.fakes import SINGLE
from master.test_web_pages import EVIL, flat, page

RECORD = {
    "command": "det experiment create c.yaml .", "host": "a-host", "python": "3.11.7", "gpus": ["A100", "A100"],
    "packages": ["numpy==1.26", "keras==3.12"],
    "repository": {
        "commit": "4d45b46c", "branch": "trunk", "isDirty": True, "isCut": True, "untracked": ["new.txt"],
        "withheld": [".env"], "diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<b>old</b>\n+<i>new</i>\n",
    },
}  # fmt: skip


def test_code_page_shows_where_the_experiment_comes_from(world):
    text = flat(page(world, f"/experiments/{world.client.create(SINGLE, provenance=RECORD)}/code").text)
    assert "<dt>Command</dt><dd>det experiment create c.yaml .</dd>" in text
    assert "<dt>GPUs</dt><dd>A100, A100</dd>" in text
    assert "<dt>Work tree</dt><dd>with changes</dd>" in text
    assert '<span class="removed">-&lt;b&gt;old&lt;/b&gt;</span>' in text
    assert '<span class="added">+&lt;i&gt;new&lt;/i&gt;</span>' in text
    assert '<span class="head">--- a/x</span>' in text
    assert "2 packages" in text
    assert "cut here" in text
    assert "suggest secrets: .env." in text
    plain = page(world, f"/experiments/{world.client.create()}/code").text
    assert "Not recorded." in plain


def test_trial_and_job_pages_show_their_records(world):
    trial = world.client.trials(world.client.create())[0]["id"]
    assert "Not recorded." in page(world, f"/trials/{trial}").text
    world.client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": RECORD})
    assert "<dd>a-host</dd>" in page(world, f"/trials/{trial}").text
    job = world.client.post("/api/v1/commands", {"config": {"entrypoint": ["a"]}, "provenance": RECORD})
    assert "<dd>a-host</dd>" in page(world, f"/jobs/{job['command']['id']}").text
    board = world.client.post("/api/v1/tensorboards", {"experimentIds": [world.client.create()]})
    assert "Not recorded." in page(world, f"/jobs/{board['tensorboard']['id']}").text


def test_records_of_any_values_are_shown(world):
    for value in (5, "text", ["list"], {"a": 1}, None, True, 1e300, EVIL, [EVIL]):
        repository = dict.fromkeys(RECORD["repository"], value)
        for record in (
            dict.fromkeys([*RECORD, "time", "anything"], value),
            {**dict.fromkeys(RECORD, value), "repository": repository},
        ):
            number = world.client.create(SINGLE, provenance=record)
            text = page(world, f"/experiments/{number}/code").text
            assert "<script>" not in text
            assert ("{{7*7}}" in text) == (value in (EVIL, [EVIL]))


def test_long_diff_is_shown_up_to_a_number_of_lines(world):
    diff = "@@ -0,0 +1,3000 @@\n" + "+x\n" * 3000
    record = {"repository": {"diff": diff, "isCut": False}}
    text = page(world, f"/experiments/{world.client.create(SINGLE, provenance=record)}/code").text
    assert text.count('<span class="added">') == 1999
    assert "cut here" in text
