"""Classify digits from a PyDataset that augments with a random generator of its own."""

import math

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(83)


class AugmentedDigits(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.rng = np.random.default_rng(3)
        self.order = np.arange(len(x))

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        shifts = self.rng.integers(-1, 2, size=(len(rows), 2))
        images = [np.roll(self.x[row], shift, axis=(0, 1)) for row, shift in zip(rows, shifts)]
        noise = self.rng.normal(0, 0.05, size=(len(rows), *self.x.shape[1:]))
        return (np.stack(images) + noise).astype("float32"), self.y[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


digits = load_digits()
x, y = digits.images[..., None] / 16.0, digits.target
train = AugmentedDigits(x[:960], y[:960], batch_size=32)

inputs = keras.Input((8, 8, 1))
x_ = layers.Conv2D(16, 3, activation="relu")(inputs)
x_ = layers.SpatialDropout2D(0.1)(x_)
x_ = layers.Flatten()(x_)
outputs = layers.Dense(10, activation="softmax")(x_)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(train, epochs=3, shuffle=False, validation_data=(x[1500:], y[1500:]))
print("Validation accuracy:", history.history["val_accuracy"])
