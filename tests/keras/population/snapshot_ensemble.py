# The form of titu1994/Snapshot-Ensembles, snapshot.py and predict_cifar_10.py: cosine cycles, a snapshot after each one
import os

import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(3)  #> context = det.keras.init(seed=3)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
x_train, y_train, x_test, y_test = x[:320], y[:320], x[320:480], y[320:480]


class SnapshotModelCheckpoint(keras.callbacks.Callback):
    def __init__(self, epochs, snapshots, prefix):
        super().__init__()
        self.check = epochs // snapshots
        self.prefix = prefix

    def on_epoch_end(self, epoch, logs=None):
        if epoch != 0 and (epoch + 1) % self.check == 0:
            self.model.save_weights(
                f"weights/{self.prefix}-{(epoch + 1) // self.check}.weights.h5", overwrite=True
            )


class SnapshotCallbackBuilder:
    def __init__(self, epochs, snapshots, rate):
        self.epochs, self.snapshots, self.rate = epochs, snapshots, rate

    def callbacks(self, prefix):
        os.makedirs("weights", exist_ok=True)
        best = keras.callbacks.ModelCheckpoint(
            f"weights/{prefix}-Best.weights.h5",
            monitor="val_accuracy",
            save_best_only=True,
            save_weights_only=True,
        )
        schedule = keras.callbacks.LearningRateScheduler(self.cosine)
        return [best, schedule, SnapshotModelCheckpoint(self.epochs, self.snapshots, prefix)]

    def cosine(self, epoch):
        length = self.epochs // self.snapshots
        return float(self.rate / 2 * (np.cos(np.pi * (epoch % length) / length) + 1))


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2)])
model.add(keras.layers.Dense(10, "softmax"))
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
snapshot = SnapshotCallbackBuilder(6, 3, 0.1)
history = model.fit(  #> history = context.fit(model,
    x_train, y_train, batch_size=32, epochs=6, verbose=0, callbacks=snapshot.callbacks("net"),
    validation_data=(x_test, y_test),
)
predictions = []
for name in sorted(os.listdir("weights")):
    model.load_weights(f"weights/{name}")
    predictions.append(model.predict(x_test, verbose=0))
trials = [np.random.dirichlet(np.ones(len(predictions))) for _ in range(20)]
scores = [float((np.tensordot(t, predictions, 1).argmax(1) == y_test).mean()) for t in trials]
RESULT = [sorted(os.listdir("weights")), scores]
