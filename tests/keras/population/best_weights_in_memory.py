# The form of keras-team/keras issue #2768: a callback keeps the best weights in memory and sets them at the end
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(47)  #> context = det.keras.init(seed=47)
x, y = load_digits(return_X_y=True)
x, y = (x[:320] / 16).astype("float32"), y[:320]


class GetBest(keras.callbacks.Callback):
    def __init__(self, monitor="val_loss", period=1):
        super().__init__()
        self.monitor, self.period = monitor, period
        self.best_epochs, self.epochs_since_last_save = 0, 0
        self.best = np.inf

    def on_train_begin(self, logs=None):
        self.best_weights = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs_since_last_save += 1
        if self.epochs_since_last_save >= self.period:
            self.epochs_since_last_save = 0
            if logs[self.monitor] < self.best:
                self.best, self.best_epochs = logs[self.monitor], epoch + 1
                self.best_weights = self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.best_weights)


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.4)])
model.add(keras.layers.Dense(10, "softmax"))
model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
get_best, histories = GetBest(), []
for batch_size in (16, 32):
    history = model.fit(  #> history = context.fit(model,
        x[:256], y[:256], batch_size=batch_size, epochs=3, verbose=0, callbacks=[get_best],
        validation_data=(x[256:], y[256:]),
    )
    histories.append([history.history["val_loss"], get_best.best, get_best.best_epochs])
RESULT = [histories, model.evaluate(x[256:], y[256:], verbose=0)]
