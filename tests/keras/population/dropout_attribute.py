# The form of keras-team/keras issue #8826: a callback sets `rate` of dropout layers, which traced code does not see
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(42)  #> context = det.keras.init(seed=42)
x = np.random.normal(size=(320, 12)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")


class DropoutReducer(keras.callbacks.Callback):
    def __init__(self, patience=0, reduce_rate=0.5):
        super().__init__()
        self.patience, self.reduce_rate = patience, reduce_rate
        self.waits, self.best, self.rates = 0, np.inf, []

    def on_epoch_end(self, epoch, logs=None):
        self.waits = 0 if logs["val_loss"] < self.best - 0.02 else self.waits + 1
        self.best = min(self.best, logs["val_loss"])
        for layer in self.model.layers:
            if isinstance(layer, keras.layers.Dropout):
                if self.waits > self.patience:
                    layer.rate = layer.rate * self.reduce_rate
                self.rates.append(layer.rate)


model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(24, "relu"), keras.layers.Dropout(0.5)])
model.add(keras.layers.Dense(24, "relu"))
model.add(keras.layers.Dropout(0.4))
model.add(keras.layers.Dense(1, "sigmoid"))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
reducer = DropoutReducer()
first = model.fit(  #> first = context.fit(model,
    x, y, batch_size=32, epochs=4, verbose=0, callbacks=[reducer], validation_split=0.2,
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
second = model.fit(  #> second = context.fit(model,
    x, y, batch_size=32, epochs=3, verbose=0, callbacks=[reducer], validation_split=0.2,
)
RESULT = [reducer.rates, [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)]]
