"""How the files in this folder were made: `python make_wandb.py DIR`, with wandb 0.31.0 and without a network."""

from __future__ import annotations

import math
import sys

import wandb


def begin(**options):
    settings = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
    )
    return wandb.init(dir=sys.argv[1], settings=settings, **options)


run = begin(
    project="digits",
    name="größe first",
    id="first001",
    tags=["vision", "größe"],
    notes="A note.",
    config={
        "learning_rate": 0.01,
        "layers": {"units": 32, "names": ["a", "b"]},
        "optimizer": "adam",
        "flag": True,
    },
)
for i in range(5):
    run.log(
        {
            "loss": 1 / (i + 1),
            "val/loss": 2 / (i + 1),
            "nested": {"acc": i / 10},
            "text": "x",
            "flag": True,
            "nan.at.1": math.nan if i == 1 else i,
            "inf": -math.inf,
            "h": wandb.Histogram([1, 2, 3]),
        }
    )
run.config.update({"late": 3})
run.finish()

run = begin(project="digits", name="failed", id="failed01")
run.log({"loss": 1.5}, step=7)
run.log({"accuracy": 1}, step=7)
run.log({"loss": 0.5}, step=10)
run.finish(exit_code=3)

# More than a block of 32 KiB.
run = begin(project="other", id="long0001")
for i in range(130):
    run.log({"loss": 1 / (i + 1), "accuracy": i / 130})
run.finish()
