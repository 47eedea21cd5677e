"""`det template` and `--template` against a real master."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write(
        "base.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: loss}\nmax_restarts: 1\n"
    )
    cluster.write("own.yaml", "name: own\nmax_restarts: 3\n")
    cluster.write("named.yaml", "name: own\nmax_restarts: 3\ntemplate: base\n")
    cluster.write("job.yaml", "entrypoint: echo done\n")
    cluster.write("slots.yaml", "resources: {slots: 1}\ndescription: of a template\n")
    return cluster


def test_configs_are_completed_by_templates(det):
    for arguments in (["own.yaml", "--template", "base"], ["named.yaml"]):
        missing = det("experiment", "create", *arguments[:1], ".", "--paused", *arguments[1:])
        assert (missing.returncode, "template 'base' not found" in missing.stderr) == (1, True)
    assert det.out("template", "create", "base", "base.yaml") == "Created template base\n"
    for arguments in (["own.yaml", "--template", "base"], ["named.yaml"]):
        printed = det.out("experiment", "create", arguments[0], "--paused", *arguments[1:])
        number = printed.split("experiment ")[1].split()[0]
        config = det.json("experiment", "describe", number)["config"]
        assert (config["entrypoint"], config["max_restarts"]) == ("true", 3)
    assert "a master has templates" in det("experiment", "create", "named.yaml", "--local").stderr
    assert det.out("template", "list").splitlines()[-1].split()[:2] == ["base", "Uncategorized"]
    assert "max_restarts: 1" in det.out("template", "describe", "base")
    assert "already" in det("template", "create", "base", "base.yaml").stderr
    det.write("base.yaml", "max_restart: 1\n")
    wrong = det("template", "set", "base", "base.yaml")
    assert (wrong.returncode, "max_restart" in wrong.stderr, "Traceback" in wrong.stderr) == (1, True, False)
    assert det.out("template", "remove", "base") == "Removed template base\n"
    assert "not found" in det("template", "describe", "base").stderr


def test_job_has_a_template(det):
    det.out("template", "set", "small", "slots.yaml")
    done = det("job", "run", "job.yaml", "--template", "small")
    assert (done.returncode, "done" in done.stdout) == (0, True)
    assert "of a template" in det.out("job", "list")
