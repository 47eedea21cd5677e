"""What `det` says about the packages that a config asks for, before anything is sent."""

from __future__ import annotations

import pytest

CONFIG = """\
    name: packages
    entrypoint: "true"
    searcher: {name: single, metric: loss}
    environment: {requirements: more/requirements.txt}
    """
JOB = "entrypoint: 'true'\nenvironment: {requirements: more/requirements.txt}\n"


@pytest.mark.parametrize("ignored", [False, True], ids=["missing", "ignored"])
@pytest.mark.parametrize("noun", ["experiment create", "job run"])
def test_requirements_file_that_is_not_sent_is_refused_by_its_name(det, noun, ignored):
    det.write("config.yaml", JOB if noun == "job run" else CONFIG)
    det.write("context/train.py", "")
    if ignored:
        det.write("context/more/requirements.txt", "numpy")
        det.write("context/.detignore", "*.txt\n")
    done = det(*noun.split(), "config.yaml", "context")

    assert done.returncode == 1
    assert done.stderr == (
        "`environment.requirements` is 'more/requirements.txt', which is not among the files of the context directory. "
        "Add the file, or remove it from .detignore.\n"
    )
    assert not det.home.exists()


def test_local_run_says_that_packages_have_no_effect(det):
    det.write("config.yaml", CONFIG)
    det.write("context/train.py", "")
    done = det("experiment", "create", "config.yaml", "context", "--local")

    assert done.returncode == 0
    assert "`environment.requirements` has no effect with `--local`" in done.stderr
