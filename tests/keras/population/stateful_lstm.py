# The form of keras-team/keras, examples/lstm_stateful.py: one fit for each epoch, and the states are reset after it
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(1)  #> context = det.keras.init(seed=1)
batch_size, steps = 8, 12
wave = np.random.uniform(-0.1, 0.1, size=batch_size * steps + 4)
expected = np.convolve(wave, [0.5, 0.5], mode="valid")[: batch_size * steps, None].astype("float32")
sequences = np.stack([wave[i : i + batch_size * steps] for i in range(4)], axis=1)[..., None].astype(
    "float32"
)
train, test = slice(0, 64), slice(64, 96)

results, models = {}, {}
for stateful in (False, True):
    inputs = keras.Input(batch_shape=(batch_size, 4, 1))
    lstm = keras.layers.LSTM(10, stateful=stateful)
    model = keras.Model(inputs, keras.layers.Dense(1)(lstm(inputs)))
    model.compile(loss="mse", optimizer="adam")
    losses = []
    for _ in range(4):
        history = model.fit(  #> history = context.fit(model,
            sequences[train], expected[train], batch_size=batch_size, epochs=1, verbose=0, shuffle=False,
            validation_data=(sequences[test], expected[test]),
        )
        losses += history.history["val_loss"]
        if stateful:
            lstm.reset_state()
    predicted = model.predict(sequences[test], batch_size=batch_size, verbose=0)
    results[stateful] = [losses, float(np.abs(predicted - expected[test]).mean())]
    models[stateful] = model
RESULT = results[True] + results[False]
