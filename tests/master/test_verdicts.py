"""What curves say in words; the curves are of models whose fate is known."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from det_keras.master.reports.verdicts import Verdict, chance, verdict
from master.fakes import SINGLE

STEPS = np.arange(40.0)


def noisy(values, size, seed=0):
    return values + np.random.default_rng(seed).normal(0, size, len(values))


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_loss_that_rises_while_that_of_training_falls_overfits(noise):
    validation = noisy(1 / (1 + STEPS) + 0.02 * np.maximum(0, STEPS - 10), noise)
    training = noisy(1 / (1 + STEPS), noise, seed=1)
    found = verdict(validation, training, smaller_is_better=True)
    assert found is not None
    assert found.kind == "overfits"
    assert abs(found.place - 10) <= 3
    # The same of an accuracy.
    assert verdict(1 - validation, 1 - training, smaller_is_better=False) == found


def test_loss_that_rises_on_both_does_not_overfit():
    rising = 1 / (1 + STEPS) + 0.02 * np.maximum(0, STEPS - 10)
    assert verdict(rising, rising, smaller_is_better=True) is None
    assert verdict(rising, None, smaller_is_better=True) is None


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_loss_that_stays_is_on_a_plateau(noise):
    found = verdict(noisy(np.exp(-STEPS / 2), noise), noisy(np.exp(-STEPS), noise), smaller_is_better=True)
    assert found is not None
    assert found.kind == "plateau"
    assert 5 <= found.place <= 25


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(1, 0, 40),
        noisy(np.linspace(1, 0, 40), 0.02),
        noisy(np.ones(40), 0.1),
        np.array([3.0, 2.0, 1.0]),
        np.full(40, np.nan),
    ],
    ids=["falls", "falls with noise", "noise", "short", "NaN"],
)
def test_nothing_is_said_of_a_curve_that_goes_on_or_is_noise(values):
    assert verdict(values, values, smaller_is_better=True) is None


def test_noise_around_a_constant_is_not_overfitting_though_training_goes_on():
    for seed in range(40):
        assert verdict(noisy(np.ones(40), 0.1, seed), np.linspace(1, 0, 40), smaller_is_better=True) is None


def test_digits_classifier_that_learns_noise_by_heart_overfits():
    keras = pytest.importorskip("keras")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    keras.utils.set_random_seed(1)
    labels = y.copy()
    wrong = np.random.default_rng(1).random(len(y)) < 0.5
    labels[wrong] = np.random.default_rng(2).integers(0, 10, wrong.sum())
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    history = model.fit(
        x[:600] / 16, labels[:600], validation_data=(x[600:] / 16, y[600:]), epochs=60, verbose=0
    ).history
    found = verdict(np.array(history["val_loss"]), np.array(history["loss"]), smaller_is_better=True)
    assert found == Verdict("overfits", int(np.argmin(history["val_loss"])))


def sentences(world, trial_id: int) -> list[str]:
    cookie = {"Accept": "text/html", "Cookie": f"auth={world.client.token}"}
    shown = world.http.get(f"/trials/{trial_id}", headers=cookie).text
    part = shown.split('id="findings">')[1].split("</ul>")[0]
    return [
        html.unescape(line).translate({0x2068: "`", 0x2069: "`"})
        for line in re.findall("<li>(.*?)</li>", part)
    ]


@pytest.mark.parametrize("with_epochs", [True, False])
def test_page_of_a_trial_says_since_when_it_overfits(world, with_epochs):
    _, trial, _ = world.launch("entrypoint: python3 train.py\nsearcher: {name: single, metric: val_loss}\n")
    for epoch in range(1, 21):
        more = {"epochs": epoch} if with_epochs else {}
        world.client.report(trial["id"], "training", epoch * 100, {"loss": 1 / epoch, **more})
        metrics = {"val_loss": 1 / epoch + 0.1 * max(0, epoch - 8), **more}
        world.client.report(trial["id"], "validation", epoch * 100, metrics)
        if epoch == 5:
            assert sentences(world, trial["id"]) == []
    since = "epoch 8" if with_epochs else "batch 800"
    assert sentences(world, trial["id"]) == [
        f"Overfits since {since}: `val_loss` went from 0.125 to 1.25, while `loss` of training became better."
    ]


def test_page_of_a_trial_says_since_when_nothing_became_better(world):
    config = "{name: single, metric: val_accuracy, smaller_is_better: false}"
    _, trial, _ = world.launch(f"entrypoint: python3 train.py\nsearcher: {config}\n")
    for epoch in range(1, 31):
        accuracy = min(0.9, 0.09 * epoch)
        world.client.report(trial["id"], "validation", epoch, {"val_accuracy": accuracy, "epochs": epoch})
    assert sentences(world, trial["id"]) == ["No progress of `val_accuracy` since epoch 10 (0.9)."]


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.booleans())
def test_place_is_a_point_of_the_curve(values, smaller):
    found = verdict(np.array(values), None, smaller_is_better=smaller)
    assert found is None or 0 <= found.place < len(values)


@pytest.mark.parametrize("seed", range(6))
def test_chance_is_that_of_an_exact_permutation_test(seed):
    draw = np.random.default_rng(seed)
    first = draw.normal(0.0, 1.0, 3 + seed % 3)
    second = draw.normal(seed / 3, 1.0, 4)
    wanted = stats.permutation_test(
        (first, second), lambda a, b: abs(np.mean(a) - np.mean(b)), n_resamples=np.inf, alternative="greater"
    )
    assert chance(first, second) == pytest.approx(wanted.pvalue)


def test_chance_of_many_runs_is_estimated():
    draw = np.random.default_rng(1)
    assert chance(draw.normal(size=40), draw.normal(size=40)) > 0.05
    assert chance(draw.normal(size=40), draw.normal(2.0, size=40)) < 0.001


@pytest.mark.parametrize(
    ("shift", "said"), [(0.0, "do not differ within the noise"), (9.0, "better than rate=0.2")]
)
def test_comparison_says_whether_two_settings_differ_by_more_than_their_seeds(world, shift, said):
    trials = []
    for rate in (0.1, 0.2):
        for value in (1.0, 2.0, 3.0, 4.0):
            config = SINGLE + f"\nhyperparameters: {{rate: {rate}}}\n"
            (trial,) = world.client.trials(world.client.create(config, activate=False))
            loss = value + (shift if rate == 0.2 else 0.0)
            world.client.report(trial["id"], "validation", 1, {"loss": loss}, run_id=0)
            trials.append(trial["id"])
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "text/html"}

    def page(ids) -> str:
        query = "&".join(f"trial={number}" for number in ids)
        return world.http.get(f"/compare?{query}", headers=headers).text

    assert said in page(trials)
    assert "train each at least 4 times" in page([trials[0], trials[-1]])
    assert "seeds" not in page(trials[:4])
