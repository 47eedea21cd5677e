"""An interrupted training ends with the weights and the history of one that was never touched."""

from __future__ import annotations

import pytest
from amount import AMOUNT, chosen
from kinds import KINDS, InterruptAt, Interrupted, train

# `test_kills.py` kills the others, but not with the newest TensorFlow.
MID_EPOCH = {
    "dict_with_sample_weights",
    "ema",
    "generator_dataset",
    "mixed_float16",
    "two_optimizers",
}
AT_BOUNDARY = {"arrays", "two_phases"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def digest_of(kind):
        if kind not in known:
            known[kind] = train(kind, tmp_path_factory.mktemp(kind), InterruptAt(10**6))
        return known[kind]

    return digest_of


def interrupt_at(kind, batches):
    """Return a callback that interrupts; Keras calls it once for the batches of an execution."""
    return InterruptAt(batches // 4 if kind == "steps_per_execution" else batches)


@pytest.mark.parametrize("kind", chosen(KINDS, KINDS.keys() - AT_BOUNDARY if AMOUNT == "usual" else ()))
def test_resume_at_epoch_boundary_gives_same_weights(kind, undisturbed, tmp_path):
    with pytest.raises(Interrupted):
        train(kind, tmp_path, interrupt_at(kind, 17))
    assert train(kind, tmp_path, InterruptAt(10**6)) == undisturbed(kind)


@pytest.mark.parametrize("kind", chosen(KINDS, KINDS.keys() - MID_EPOCH if AMOUNT == "usual" else ()))
def test_resume_mid_epoch_gives_same_weights(kind, undisturbed, tmp_path):
    config = {"min_checkpoint_period": {"batches": 3}}
    # Twice in one epoch, and once in a later one.
    for batches in (5, 4, 14):
        with pytest.raises(Interrupted):
            train(kind, tmp_path, interrupt_at(kind, batches), **config)
    assert train(kind, tmp_path, InterruptAt(10**6), **config) == undisturbed(kind)


def test_finished_run_returns_its_history_at_once(undisturbed, tmp_path):
    train("arrays", tmp_path, InterruptAt(10**6))
    assert train("arrays", tmp_path, InterruptAt(0)) == undisturbed("arrays")
