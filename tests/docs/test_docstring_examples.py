"""The examples in docstrings, run as doctests: `pycon` blocks under `Example:`."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.experimental import client
from det_keras.keras.media import MediaLog
from det_keras.search.simulate import simulate

MODULES = (
    "det_keras.core",
    "det_keras.experimental.client",
    "det_keras.keras",
    "det_keras.keras.callbacks",
    "det_keras.search",
    "det_keras.search.simulate",
)
BLOCK = re.compile(r"^( *)```pycon\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def public_objects() -> Iterator[tuple[str, str, Any]]:
    """Yield module, name and object of what the modules export, and of the methods of exported classes."""
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            found = getattr(loaded, name)
            if getattr(found, "__module__", "").startswith("det_keras") and callable(found):
                yield module, name, found
                for member, value in members_of(found) if inspect.isclass(found) else ():
                    if not member.startswith("_") and callable(value):
                        yield module, f"{name}.{member}", value


def members_of(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the members of a class and of those of its bases that are ours."""
    for base in found.__mro__:
        if base.__module__.startswith("det_keras"):
            yield from vars(base).items()


#: Module and name of each function with an example -> its docstring.
EXAMPLES = {
    (module, name): doc
    for module, name, value in public_objects()
    if ">>>" in (doc := inspect.getdoc(value) or "")
}


@pytest.fixture
def names(module, name, request, tmp_path, monkeypatch):
    """What an example may use without importing it."""
    monkeypatch.chdir(tmp_path)
    names = {**vars(importlib.import_module(module)), "np": np, "keras": keras, "tf": tf}
    if module == "det_keras.experimental.client":
        request.getfixturevalue("reported_experiment")
    if not name.startswith("KerasContext."):
        yield names
        return
    with det.keras.init(seed=1) as context:
        yield {**names, "context": context}


@pytest.mark.parametrize(("module", "name"), EXAMPLES)
def test_example_prints_what_it_says(module, name, names):
    blocks = BLOCK.findall(EXAMPLES[module, name])
    text = "".join(textwrap.dedent(indent + text) for indent, text in blocks)
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert test.examples, "The example is in no ```pycon block."
    printed: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=printed.append)
    assert failed == 0, "".join(printed)


@pytest.mark.parametrize(
    "function",
    [
        det.core.init,
        client.get_experiment,
        client.get_trial,
        det.keras.init,
        det.keras.KerasContext.fit,
        det.keras.KerasContext.wrap_data,
        det.keras.KerasContext.wrap_optimizer,
        simulate,
    ],
    ids=lambda function: f"{function.__module__}.{function.__qualname__}",
)
def test_main_function_has_an_example_and_describes_its_arguments(function):
    assert_described(function)
    assert "\nReturns:\n" in inspect.getdoc(function)


@pytest.mark.parametrize("name", [name for name in vars(MediaLog) if name.startswith("log_")])
def test_call_that_logs_media_has_an_example_and_describes_its_arguments(name):
    assert_described(getattr(det.keras.KerasContext, name))


def assert_described(function):
    doc = inspect.getdoc(function)
    assert doc in EXAMPLES.values()
    arguments = re.split(r"\n(?:Returns|Raises):\n", doc.split("\nArgs:\n")[1])[0]
    described = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert described == [name for name in inspect.signature(function).parameters if name != "self"]
