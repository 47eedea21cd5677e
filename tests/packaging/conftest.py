"""Tests of the built package.

They fetch packages from the index, so that they run only when they are asked for: `tox -e packaging`, or
`pytest -m packaging` where uv is installed.
"""

from __future__ import annotations

import pytest
from environments import REPOSITORY, Environment, build


def pytest_collection_modifyitems(config, items):
    if "packaging" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="installs packages: `tox -e packaging` runs these")
    for item in items:
        if item.get_closest_marker("packaging"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Sdist and wheel of the repository, by these names."""
    return build(REPOSITORY, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(built, tmp_path_factory):
    """An environment with det_keras and what it depends on, and no TensorFlow."""
    return Environment.create(tmp_path_factory.mktemp("bare"), built["wheel"])
