"""The check that the built site loads nothing from other hosts, which `tox -e docs` runs."""

from __future__ import annotations

import importlib.util

import pytest

from docs.pages import ROOT


@pytest.fixture(scope="module")
def check_site():
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "hooks" / "check_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.html", '<script src="https://cdn.example/x.js"></script>'),
        ("page.html", '<link rel="stylesheet" href="//fonts.example/css">'),
        ("page.html", '<img src="http://example.org/x.png">'),
        ("page.html", '<style>@import "https://fonts.example/css";</style>'),
        ("page.html", '<p style="background: url(https://example.org/x.png)">'),
        ("page.html", '<pre class="mermaid">graph</pre>'),
        ("style.css", "@import url('https://fonts.example/css');"),
        ("style.css", "p { background: url(//example.org/x.png) }"),
    ],
)
def test_resource_of_another_host_is_found(check_site, tmp_path, name, text):
    (tmp_path / "index.html").write_text("<p>Text</p>")
    (tmp_path / name).write_text(text)
    assert len(list(check_site.foreign_resources(tmp_path))) == 1
    assert check_site.main(tmp_path) == 1


def test_links_and_own_resources_are_accepted(check_site, tmp_path):
    (tmp_path / "index.html").write_text(
        '<a href="https://example.org">Elsewhere</a><script src="../assets/x.js"></script>'
        '<img src="data:image/svg+xml;base64,AA"><svg xmlns="http://www.w3.org/2000/svg"></svg>'
    )
    (tmp_path / "style.css").write_text("p { background: url(x.png) }")
    assert check_site.main(tmp_path) == 0


def test_empty_site_is_a_failure(check_site, tmp_path):
    assert check_site.main(tmp_path) == 1
