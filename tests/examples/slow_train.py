"""The digits example's model on few samples, with steps slow enough to be interrupted.

With the variable GATE the third epoch does not end before the file of that name exists. In the folder PROCESSES the
process leaves a file with its number, named after its trial and rank. With the hyperparameters
`dropout: 0.0` and `global_batch_size` the weights do not depend on the number of workers.
"""

import os
import time
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import det_keras as det


class Slow(keras.callbacks.Callback):
    """Makes a batch take a while."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        gate = os.environ.get("GATE")
        while epoch == 2 and gate and not Path(gate).exists():
            time.sleep(0.02)


context = det.keras.init()
if "PROCESSES" in os.environ:
    name = f"{os.environ['DET_TRIAL_ID']}-{context.distributed.rank}-{os.getpid()}"
    (Path(os.environ["PROCESSES"]) / name).write_text(str(os.getpid()))
digits = load_digits()
x, y = context.wrap_data((digits.data / 16.0).astype("float32")[:640], digits.target[:640])
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dropout(context.training.hparams.get("dropout", 0.2)),
        keras.layers.Dense(10, "softmax"),
    ]
)
optimizer = context.wrap_optimizer(keras.optimizers.Adam(context.training.hparams["learning_rate"]))
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(patience=50)
whole = context.training.hparams.get("global_batch_size")
batch_size = context.distributed.shard_batch_size(whole) if whole else 32
context.fit(model, x, y, batch_size=batch_size, validation_split=0.1, callbacks=[Slow(), stop])
print("trained to the end")
