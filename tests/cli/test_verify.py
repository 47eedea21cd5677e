"""What `--verify-resume` says of two checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest


def checkpoint(directory, *values):
    """Write the training state of a model whose variables are these numbers."""
    (directory / "training_state").mkdir(parents=True)
    variables = [
        {"group": "optimizer", "path": f"v{index}", "shape": [], "dtype": "float32", "offset": 4 * index}
        for index, _ in enumerate(values)
    ]
    state = {"version": 1, "position": {}, "history": {}, "random": {}, "variables": variables}
    (directory / "training_state" / "state.json").write_text(json.dumps(state))
    (directory / "training_state" / "variables.bin").write_bytes(np.array(values, np.float32).tobytes())
    (directory / "model.weights.h5").write_bytes(b"the same")
    return directory


@pytest.mark.parametrize(
    ("killed", "differences"),
    [
        ((1.0, 2.0), []),
        ((1.0, 3.0), ["the optimizer variable `v1`"]),
        ((1.0,), ["the number of variables: 2 and 1"]),
    ],
)
def testdifferences_are_named(killed, differences, tmp_path):
    undisturbed = checkpoint(tmp_path / "undisturbed", 1.0, 2.0)
    assert list(differences(undisturbed, checkpoint(tmp_path / "killed", *killed))) == differences
