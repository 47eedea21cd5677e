"""Scripts as people write them for plain Keras: few lines make them resume exactly, wherever they are killed."""

from __future__ import annotations

import os
import random

import pytest
from amount import chosen
from script_diffs import (
    PAGE,
    SCRIPTS,
    apply_diff,
    convert,
    count_changed_lines,
    read_diff,
    read_script,
    with_list,
)
from script_runs import SHUFFLED, UNLIKE_PLAIN, ScriptRunner, results_of

#: Scripts that are killed only where all are asked for: what they have to find again is in others too, or in ways.
ALIKE = frozenset(
    {
        "autoencoder",
        "csv_files",
        "diffusion",
        "distillation",
        "generator_lstm",
        "image_captioning",
        "image_folder",
        "k_fold",
        "masked_autoencoder",
        "metric_learning",
        "mixed_precision",
        "multi_input_output",
        "quantization",
        "recommender",
        "reinforcement",
        "schedule_ema",
        "seq2seq",
        "siamese",
        "simclr",
        "text_classification",
        "text_generation",
        "timeseries_forecasting",
        "timeseries_transformer",
        "transfer_learning",
        "vae",
        "wgan_gp",
    }
)
#: Scripts that are compared with plain Keras only where all are asked for: they call `fit` in ways that
#: `test_like_plain_keras.py` compares, or as another script does.
PLAIN_ALIKE = frozenset(
    {
        "autoencoder",
        "image_captioning",
        "k_fold",
        "masked_autoencoder",
        "metric_learning",
        "mixed_precision",
        "multi_input_output",
        "quantization",
        "recommender",
        "reinforcement",
        "seq2seq",
        "siamese",
        "simclr",
        "timeseries_transformer",
        "vae",
        "wgan_gp",
    }
)
SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))
MOST_LINES = 8


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Run the scripts of all tests that were asked for, two at a time; the results, by test name."""
    runner = ScriptRunner(tmp_path_factory.mktemp("scripts"))

    def killed(name):
        return runner.kill_twice(name, random.Random(f"{SEED} {name}"))

    jobs = {
        test_kills_change_nothing.__name__: killed,
        test_converted_script_ends_as_plain_keras_does.__name__: runner.beside_plain,
    }
    with results_of(request, jobs) as results:
        yield results


@pytest.fixture
def result(request, results):
    """Return a function that waits for the runs of this test and returns them."""
    return results[request.node.name].result


@pytest.mark.process
@pytest.mark.kill
@pytest.mark.parametrize("name", chosen(SCRIPTS, ALIKE))
def test_kills_change_nothing(name, result):
    kills, reference, resumed = result()
    assert reference.values, "the script keeps nothing that could be compared"
    assert resumed.values == reference.values, f"Another end after kills at {kills}, seed {SEED}."


@pytest.mark.process
@pytest.mark.parametrize(
    "name", chosen((name for name in SCRIPTS if name not in UNLIKE_PLAIN), PLAIN_ALIKE, are_many=True)
)
def test_converted_script_ends_as_plain_keras_does(name, result):
    converted, plain = result()
    assert converted.values == plain.values
    if not name.startswith("loop_"):
        # Batches of a plain loop pass where nobody counts them.
        assert converted.batches == plain.batches


@pytest.mark.parametrize("name", SCRIPTS)
def test_few_lines_convert_a_script(name):
    assert "det_keras" not in read_script(name)
    assert "import det_keras as det" in convert(name)
    assert 3 <= count_changed_lines(read_diff(name)) <= MOST_LINES


def test_diff_that_does_not_fit_is_refused():
    diff = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert apply_diff("a\nb\nd\n", diff) == "a\nc\nd\n"
    with pytest.raises(ValueError, match="Line 2 is not 'b'"):
        apply_diff("a\nx\nd\n", diff)


def test_replaced_line_counts_once():
    assert count_changed_lines("@@ -1,3 +1,4 @@\n a\n-b\n+c\n+d\n e\n-f\n") == 3


def test_plain_forms_that_differ_have_a_reason():
    assert SHUFFLED | set(UNLIKE_PLAIN) | ALIKE | PLAIN_ALIKE <= set(SCRIPTS)


def test_page_lists_every_diff():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_list(page), "Run `python tests/keras/script_diffs.py`."
    assert page.count("```diff") == len(SCRIPTS) + 1
