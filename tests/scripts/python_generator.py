"""Count the bumps of a noisy signal; an endless Python generator draws the signals."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(71)

LENGTH, MOST = 48, 4


def draw_signals(batch_size, seed):
    """Yield batches of signals with the number of their bumps, without end."""
    rng = np.random.default_rng(seed)
    time = np.arange(LENGTH)
    while True:
        counts = rng.integers(0, MOST, batch_size)
        signals = 0.1 * rng.normal(size=(batch_size, LENGTH))
        for signal, count in zip(signals, counts):
            for place in rng.uniform(4, LENGTH - 4, count):
                signal += np.exp(-0.5 * (time - place) ** 2)
        yield signals[..., None].astype("float32"), counts


val_x, val_y = next(draw_signals(128, seed=1))

model = keras.Sequential(
    [
        keras.Input((LENGTH, 1)),
        layers.Conv1D(8, 5, activation="relu"),
        layers.Conv1D(8, 5, strides=2, activation="relu"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(16, activation="relu"),
        layers.Dense(MOST, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Nadam(0.005),
    loss="sparse_categorical_crossentropy",
    metrics=["sparse_categorical_accuracy"],
)
history = model.fit(draw_signals(32, seed=0), steps_per_epoch=25, epochs=4, validation_data=(val_x, val_y))

predicted = model.predict(val_x, verbose=0).argmax(axis=1)
confusion = np.zeros((MOST, MOST), dtype=int)
np.add.at(confusion, (val_y, predicted), 1)
print("True counts in rows, predicted ones in columns:")
print(confusion)
