"""Train a classifier, then quantize it to 8-bit integers and compare."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

keras.utils.set_random_seed(77)

digits = load_digits()
x, y = (digits.data / 16.0).astype("float32"), digits.target
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)

model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(48, activation="relu"),
        layers.Dropout(0.1),
        layers.Dense(48, activation="relu"),
        layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(x_train, y_train, batch_size=64, epochs=4, validation_split=0.1)

full = model.evaluate(x_test, y_test, return_dict=True)
full_outputs = model.predict(x_test)
kernel_bytes = sum(np.asarray(weight).nbytes for weight in model.weights)

model.quantize("int8")
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
quantized = model.evaluate(x_test, y_test, return_dict=True)
quantized_outputs = model.predict(x_test)
quantized_bytes = sum(np.asarray(weight).nbytes for weight in model.weights)

error = np.mean((full_outputs - quantized_outputs) ** 2)
print(f"accuracy {full['accuracy']:.3f} -> {quantized['accuracy']:.3f}, mean squared error {error:.2e}")
print(f"bytes {kernel_bytes} -> {quantized_bytes}")
model.save("quantized.keras")
