"""A script for trials, as a user of the original writes it: nothing in it knows of this project.

With the hyperparameter `ends_badly` it runs until it is paused, and its second run dies without a word after
it reported more than it had saved. Otherwise it trains its `steps` and is done.
"""

import logging
import os
import signal
import time

import determined as det
from determined import core
from determined.experimental import client

EVERY = 10


def train(context, info):
    hparams = info.trial.hparams
    steps, reached = hparams["steps"], 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            reached = int((path / "steps").read_text())
    print(f"run {info.trial._trial_run_id} starts at {reached}", flush=True)
    for step in range(reached + 1, steps + 1):
        report(context, step)
        if step % EVERY == 0 or step == steps:
            save(context, step)
        if context.preempt.should_preempt():
            save(context, step)
            print(f"paused at {step}", flush=True)
            return
        if hparams["ends_badly"]:
            misbehave(info, step, reached)


def report(context, step):
    context.train.report_training_metrics(step, {"loss": 1 / step, "odd": float("nan")})
    context.train.report_metrics("mine", step, {"rate": step * 0.5, "name": "x"})
    if step % EVERY == 0:
        context.train.report_validation_metrics(step, {"loss": 1 / step})
    context.train.report_progress(min(1.0, step / 100))
    context.train.set_status("training")


def save(context, step):
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        (path / "steps").write_text(str(step))


def misbehave(info, step, reached):
    if info.trial._trial_run_id == 1:
        # Until it is paused: the test does that when it has seen enough.
        time.sleep(0.01)
    if info.trial._trial_run_id == 2 and step >= reached + 15 and step % EVERY == 5:
        # Reports go out in the background: wait until the last one has arrived, three steps after a checkpoint.
        trial = client.get_trial(info.trial.trial_id)
        while max(row.steps_completed for row in trial.iter_metrics("mine")) < step:
            time.sleep(0.05)
        print(f"killed at {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None, "This runs as a trial."
    # Its own writer of event files would need TensorFlow or PyTorch beside it.
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        train(context, info)


main()
