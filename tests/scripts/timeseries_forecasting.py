"""Forecast a temperature from the last 20 hours of 7 sensors."""

import keras
import numpy as np
import pandas as pd
from keras import layers

keras.utils.set_random_seed(55)

PAST, FUTURE, FEATURES = 20, 3, 7

hours = np.arange(1200)
rng = np.random.default_rng(4)
columns = {
    f"sensor_{i}": np.sin(2 * np.pi * hours / 24 + i)
    + 0.1 * i * np.cos(hours / 50)
    + rng.normal(0, 0.1, len(hours))
    for i in range(FEATURES)
}
frame = pd.DataFrame(columns, index=pd.date_range("2024-01-01", periods=len(hours), freq="h"))

split = int(0.7 * len(frame))
values = ((frame - frame[:split].mean()) / frame[:split].std()).to_numpy("float32")
train_data, val_data = values[:split], values[split:]

dataset_train = keras.utils.timeseries_dataset_from_array(
    train_data[: -PAST - FUTURE],
    train_data[PAST + FUTURE :, 0],
    sequence_length=PAST,
    batch_size=32,
    shuffle=True,
    seed=7,
)
dataset_val = keras.utils.timeseries_dataset_from_array(
    val_data[: -PAST - FUTURE],
    val_data[PAST + FUTURE :, 0],
    sequence_length=PAST,
    batch_size=32,
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape, "target shape:", targets.numpy().shape)

model_inputs = keras.Input((PAST, FEATURES))
hidden = layers.LSTM(16)(model_inputs)
outputs = layers.Dense(1)(hidden)
model = keras.Model(inputs=model_inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mse")

path_checkpoint = "model_checkpoint.weights.h5"
stop = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
save = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath=path_checkpoint, verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(dataset_train, epochs=4, validation_data=dataset_val, callbacks=[stop, save])

for x, y in dataset_val.take(2):
    print("forecast", model.predict(x, verbose=0)[0], "true", y[0].numpy())
