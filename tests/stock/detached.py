"""A script that no master starts, as a user of the original writes it: it reports from wherever it runs.

Arguments: the directory of its checkpoints, how many steps to train, and how to end: `well`, `badly` or `never`.
"""

import sys
import time

from determined import core
from determined.experimental import core_v2

EVERY = 5


def main():
    folder, steps, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    core_v2.init(
        config=core_v2.Config(
            name="detached",
            hparams={"lr": 0.1},
            labels=["outside"],
            searcher={"name": "single", "metric": "loss", "smaller_is_better": True},
            external_experiment_id="my-experiment",
            external_trial_id="my-trial",
        ),
        checkpoint_storage=folder,
        # Its own writer of event files would need TensorFlow or PyTorch beside it.
        tensorboard_mode=core.TensorboardMode.MANUAL,
    )
    reached = 0
    if core_v2.info.latest_checkpoint is not None:
        with core_v2.checkpoint.restore_path(core_v2.info.latest_checkpoint) as path:
            reached = int((path / "steps").read_text())
    print(f"run {core_v2.info.trial._trial_run_id} starts at {reached}", flush=True)
    for step in range(reached + 1, steps + 1):
        core_v2.train.report_training_metrics(step, {"loss": 1 / step})
        if step % EVERY == 0:
            core_v2.train.report_validation_metrics(step, {"loss": 1 / step})
            with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "steps").write_text(str(step))
    if ending == "badly":
        raise RuntimeError("it went wrong")
    while ending == "never":
        time.sleep(1)
    core_v2.close()


main()
