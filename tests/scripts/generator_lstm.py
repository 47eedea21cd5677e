"""Sort sequences by their sum with an LSTM; a generator of unknown length feeds it."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(58)

rng = np.random.default_rng(0)
sequences = [rng.normal(size=(rng.integers(4, 9), 3)).astype("float32") for _ in range(480)]
labels = np.array([int(sequence.sum() > 0) for sequence in sequences])
train_index, val_index = np.arange(400), np.arange(400, 480)


def train_generator():
    # Another order in each epoch.
    for i in np.random.permutation(train_index):
        yield sequences[i], labels[i]


def val_generator():
    for i in val_index:
        yield sequences[i], labels[i]


signature = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((), tf.int64))
train = tf.data.Dataset.from_generator(train_generator, output_signature=signature)
train = train.padded_batch(16).prefetch(2)
val = tf.data.Dataset.from_generator(val_generator, output_signature=signature).padded_batch(16)

model = keras.Sequential(
    [
        keras.Input((None, 3)),
        layers.Masking(),
        layers.Bidirectional(layers.LSTM(8)),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
model.summary()

history = model.fit(train, epochs=3, validation_data=val)
for epoch, accuracy in enumerate(history.history["val_accuracy"], start=1):
    print(f"epoch {epoch}: validation accuracy {accuracy:.3f}")
