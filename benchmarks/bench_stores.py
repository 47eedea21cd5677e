"""What an object store costs: S3's protocol on loopback (moto's server), against the disk and against s3fs.

Both sides of the second ratio send the same bytes to the same server, which does most of the work.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

from measure import in_turns, report

# isort: split
import keras
import numpy as np
import s3fs
from big_model import UNITS, Watch, build

import det_keras as det
from det_keras import storage

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "storage"))

from servers import S3Server, running

BATCH, STEPS, PERIOD = 8, 60, 20
BYTES = 604_000_000


def train(model: keras.Model, folder: str, place: storage.Storage | None) -> list[float]:
    """Train an epoch with checkpoints to `place`, or to the disk; return for how long each held training."""
    watch = Watch()
    x = np.random.RandomState(0).rand(BATCH * STEPS, UNITS).astype("float32")
    config = {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": PERIOD}}
    with det.keras.init(run_dir=folder, seed=1, config=config) as context:
        if place is not None:
            context.core.checkpoint.storage = place
        context.fit(
            model, x, x, batch_size=BATCH, validation_data=(x[:8], x[:8]), verbose=0, callbacks=[watch]
        )
    # But the first checkpoint.
    return [watch.between(batch) for batch in range(2 * PERIOD, len(watch.begins), PERIOD)]


def store_bytes(place: storage.Storage, content: memoryview) -> None:
    """Store and delete a checkpoint of one file."""
    uuid = str(uuid4())
    with place.store_streams(uuid) as target, target.open("model.keras") as file:
        file.write(content)
    place.delete(uuid)


def measure_upload(server: S3Server, folder: str) -> None:
    """Compare the upload of one file."""
    bucket = server.make_bucket()
    section = server.section(bucket)
    content = np.random.RandomState(1).bytes(BYTES)
    path = Path(folder) / "file"
    path.write_bytes(content)
    plain = s3fs.S3FileSystem(
        key=section["access_key"], secret=section["secret_key"], endpoint_url=section["endpoint_url"]
    )
    place = storage.from_config(section)

    def put() -> None:
        plain.put(str(path), f"{bucket}/file")
        plain.rm(f"{bucket}/file")

    ours_s, theirs_s = in_turns(5, lambda: store_bytes(place, memoryview(content)), put)
    detail = f"s3fs.put {theirs_s:.2f} s of {BYTES / 1e6:.0f} MB"
    report("upload to S3, verified, against s3fs.put", ours_s / theirs_s, goal=1.0, detail=detail)


def measure_training(server: S3Server, folder: str) -> None:
    """Compare for how long checkpoints hold training."""
    model = build()
    section = server.section(server.make_bucket())
    disk: list[float] = []
    store: list[float] = []
    for turn in range(2):
        disk += train(model, f"{folder}/disk{turn}", None)
        store += train(model, f"{folder}/store{turn}", storage.from_config(section))
    disk_s, store_s = statistics.median(disk), statistics.median(store)
    detail = f"disk {disk_s:.3f} s, S3 {store_s:.3f} s, {len(disk)} checkpoints each"
    report("training held by a checkpoint to S3, against disk", store_s / disk_s, goal=1.05, detail=detail)


def main() -> None:
    """Measure both."""
    os.environ.update({"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"})
    with running("s3") as server, tempfile.TemporaryDirectory() as folder:
        assert isinstance(server, S3Server)
        measure_upload(server, folder)
        measure_training(server, folder)


if __name__ == "__main__":
    main()
