# The form of keras-team/keras pull request #4426 and issue #4443: several fits append to a CSV log
import csv

import keras
import numpy as np
from sklearn.metrics import roc_auc_score

#>+ import det_keras as det

keras.utils.set_random_seed(49)  #> context = det.keras.init(seed=49)
x = np.random.normal(size=(300, 8)).astype("float32")
y = (x[:, 0] + x[:, 1] ** 2 + np.random.normal(scale=0.3, size=300) > 0.5).astype("float32")


class RocAuc(keras.callbacks.Callback):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.best = x, y, 0.0

    def on_epoch_end(self, epoch, logs=None):
        logs["auc"] = float(roc_auc_score(self.y, self.model.predict(self.x, verbose=0)[:, 0]))
        self.best = max(self.best, logs["auc"])
        logs["best_auc"] = self.best


model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
)
auc, epochs = RocAuc(x[240:], y[240:]), 0
for rate in (0.01, 0.003, 0.001):
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
    logger = keras.callbacks.CSVLogger("training.csv", append=True)
    history = model.fit(  #> history = context.fit(model,
        x[:240], y[:240], batch_size=30, initial_epoch=epochs, epochs=epochs + 3, verbose=0,
        validation_data=(x[240:], y[240:]), callbacks=[auc, logger],
    )
    epochs += 3
with open("training.csv") as file:
    RESULT = list(csv.reader(file))
