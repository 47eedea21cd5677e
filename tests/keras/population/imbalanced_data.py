# The form of tensorflow/docs, site/en/tutorials/structured_data/imbalanced_data.ipynb: class weights, resampling
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(59)  #> context = det.keras.init(seed=59)
x = np.random.normal(size=(400, 6)).astype("float32")
y = (x[:, 0] + x[:, 1] > 1.8).astype("float32")
pos, neg = int(y.sum()), int((1 - y).sum())
train, val = (x[:320], y[:320]), (x[320:], y[320:])


def make_model(output_bias=None):
    bias = output_bias if output_bias is None else keras.initializers.Constant(output_bias)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5)])
    model.add(keras.layers.Dense(1, "sigmoid", bias_initializer=bias or "zeros"))
    metrics = [keras.metrics.TruePositives(name="tp"), keras.metrics.AUC(name="prc", curve="PR")]
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(), metrics=metrics)
    return model


def early_stopping(patience):
    return keras.callbacks.EarlyStopping(
        monitor="val_prc", patience=patience, mode="max", restore_best_weights=True
    )


make_model(float(np.log(pos / neg))).save_weights("initial.weights.h5")
histories = {}
for kind in ("zero bias", "careful bias", "weighted", "resampled"):
    model = make_model()
    model.load_weights("initial.weights.h5")
    if kind == "zero bias":
        model.layers[-1].bias.assign([0.0])
    if kind == "resampled":
        parts = [
            tf.data.Dataset.from_tensor_slices((x[:320][y[:320] == k], y[:320][y[:320] == k])) for k in (0, 1)
        ]
        parts = [part.shuffle(400).repeat() for part in parts]
        resampled = tf.data.Dataset.sample_from_datasets(parts, weights=[0.5, 0.5]).batch(32).prefetch(2)
        history = model.fit(  #> history = context.fit(model,
            resampled, epochs=5, steps_per_epoch=4, verbose=0, validation_data=val,
            callbacks=[early_stopping(2)],
        )
    else:
        class_weight = {0: 200 / neg, 1: 200 / pos} if kind == "weighted" else None
        history = model.fit(  #> history = context.fit(model,
            *train, batch_size=32, epochs=2, verbose=0, validation_data=val, class_weight=class_weight,
            callbacks=[early_stopping(1)],
        )
    histories[kind] = [history.history, model.evaluate(*val, verbose=0)]
RESULT = histories
