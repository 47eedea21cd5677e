"""Classify time series with a transformer encoder."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(68)

rng = np.random.default_rng(5)
phase, frequency = rng.uniform(0, 6, (640, 1)), rng.uniform(0.2, 0.5, (640, 1))
wave = np.sin(frequency * np.arange(40) + phase)
labels = rng.integers(0, 2, 640)
# Those of class 1 have sharp edges.
x = np.where(labels[:, None] == 1, np.sign(wave), wave) + rng.normal(0, 0.2, wave.shape)
x = x[..., None].astype("float32")
x_train, y_train, x_test, y_test = x[:512], labels[:512], x[512:], labels[512:]

# The classes are shuffled, as the validation split is taken from the end.
order = np.random.permutation(len(x_train))
x_train, y_train = x_train[order], y_train[order]


def transformer_encoder(inputs, head_size, num_heads, ff_dim, dropout=0):
    x = layers.MultiHeadAttention(key_dim=head_size, num_heads=num_heads, dropout=dropout)(inputs, inputs)
    x = layers.Dropout(dropout)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    res = x + inputs
    x = layers.Conv1D(filters=ff_dim, kernel_size=1, activation="relu")(res)
    x = layers.Dropout(dropout)(x)
    x = layers.Conv1D(filters=inputs.shape[-1], kernel_size=1)(x)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return x + res


inputs = keras.Input(x_train.shape[1:])
x = layers.Conv1D(8, 4, strides=4)(inputs)
x = transformer_encoder(x, head_size=8, num_heads=2, ff_dim=8, dropout=0.1)
x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
x = layers.Dense(16, activation="relu")(x)
x = layers.Dropout(0.3)(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=3e-3),
    metrics=["sparse_categorical_accuracy"],
)

callbacks = [keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)]
history = model.fit(x_train, y_train, validation_split=0.2, epochs=4, batch_size=16, callbacks=callbacks)
score = model.evaluate(x_test, y_test, verbose=1)
print("Test loss and accuracy:", np.round(score, 3))
