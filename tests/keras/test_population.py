"""The population: scripts in the form of public ones, converted, beside plain Keras, and killed at drawn batches."""

from __future__ import annotations

import ast
import os
import random

import pytest
from amount import AMOUNT
from population_runs import POPULATION, PopulationRunner, difference, read_converted, read_plain
from script_runs import results_of

#: All of them take a quarter of an hour: that is for the long mode.
SCRIPTS = POPULATION if AMOUNT == "all" else POPULATION[::3]
SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return PopulationRunner(tmp_path_factory.mktemp("population"))


@pytest.fixture(scope="module")
def results(request, runner):
    """Run the scripts of all tests that were asked for, two at a time; the results, by test name."""

    def killed_twice(name):
        return runner.kill_twice(name, random.Random(f"{SEED} {name}"))

    def killed_late(name):
        return runner.kill_late(name, random.Random(f"{SEED} {name} late"))

    jobs = {
        test_converted_script_ends_as_plain_keras_does.__name__: runner.beside_plain,
        test_two_kills_change_nothing.__name__: killed_twice,
        test_late_kill_changes_nothing.__name__: killed_late,
    }
    with results_of(request, jobs) as results:
        yield results


@pytest.fixture
def result(request, results):
    """Return a function that waits for the runs of this test and returns them."""
    return results[request.node.name].result


def assert_same_end(kills, reference, resumed):
    """Assert that a killed script ends as the undisturbed one."""
    assert reference.values, "the script keeps nothing that could be compared"
    found = difference(resumed.values, reference.values)
    assert not found, f"Another end after kills at {kills}, seed {SEED}."


@pytest.mark.process
@pytest.mark.parametrize("name", SCRIPTS)
def test_converted_script_ends_as_plain_keras_does(name, result):
    converted, plain = result()
    assert converted.values, "the script keeps nothing that could be compared"
    assert not difference(converted.values, plain.values)
    assert converted.batches == plain.batches


@pytest.mark.process
@pytest.mark.kill
@pytest.mark.parametrize("name", SCRIPTS)
def test_two_kills_change_nothing(name, result):
    assert_same_end(*result())


@pytest.mark.process
@pytest.mark.kill
@pytest.mark.parametrize("name", SCRIPTS)
def test_late_kill_changes_nothing(name, result):
    assert_same_end(*result())


@pytest.mark.parametrize("name", POPULATION)
def test_script_of_the_population_has_two_forms_and_names_its_source(name):
    plain, converted = read_plain(name), read_converted(name)
    assert plain.startswith("# The form of ")
    assert "det_keras" not in plain
    assert "import det_keras as det" in converted
    assert "#>" not in plain + converted
    ast.parse(plain)
    ast.parse(converted)


def test_population_is_large():
    assert len(POPULATION) >= 40
