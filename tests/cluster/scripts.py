"""Scripts that a real cluster would run; without Keras where Keras has no part in what is tested."""

REPORTS = """
import sys, time
import det_keras as det

with det.core.init() as core:
    hparams = det.get_cluster_info().trial.hparams
    last = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    for epoch in range(1, last + 1):
        loss = hparams.get("learning_rate", 1.0) / epoch
        core.train.report_metrics("training", epoch * 10, {"loss": loss, "epochs": epoch})
        core.train.report_metrics("validation", epoch * 10, {"val_loss": loss, "epochs": epoch})
        with core.checkpoint.store_path({"steps_completed": epoch * 10}) as (path, uuid):
            (path / "state").write_text(str(epoch))
        assert core.checkpoint.get_metadata(uuid)["steps_completed"] == epoch * 10
        if core.preempt.should_preempt():
            break
"""

REJECTS_IN_CORE = """
import det_keras as det
with det.core.init() as core:
    raise det.InvalidHP("too many layers")
"""

REJECTS_IN_KERAS = """
import det_keras as det
context = det.keras.init()
raise det.InvalidHP("too many layers")
"""

# Rank 0 waits for what rank 1 never sends.
ONE_RANK_REJECTS = """
import det_keras as det
context = det.keras.init()
if context.distributed.rank == 1:
    raise det.InvalidHP("too many layers")
context.distributed.allgather("waits")
"""
