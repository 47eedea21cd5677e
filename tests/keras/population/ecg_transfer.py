# The form of CVxTz/ECG_Heartbeat_Classification, baseline_mitbih.py and baseline_ptbdb_transfer_freeze.py
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(19)  #> context = det.keras.init(seed=19)
beats = np.cumsum(np.random.normal(size=(360, 24, 1)), axis=1).astype("float32")
kinds = np.digitize(beats[:, -1, 0], [-5, 0, 5])


def get_model(classes, name):
    inputs = keras.Input((24, 1))
    x = keras.layers.Conv1D(8, 5, activation="relu", name="conv1")(inputs)
    x = keras.layers.SpatialDropout1D(0.1)(keras.layers.MaxPool1D(2)(x))
    x = keras.layers.GlobalMaxPool1D()(keras.layers.Conv1D(8, 3, activation="relu", name="conv2")(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(16, activation="relu", name="dense_1")(x))
    model = keras.Model(inputs, keras.layers.Dense(classes, activation="softmax", name=name)(x))
    model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def callbacks_list(path):
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, monitor="val_accuracy", save_best_only=True, save_weights_only=True, mode="max"
    )
    early = keras.callbacks.EarlyStopping(monitor="val_accuracy", mode="max", patience=3)
    redonplat = keras.callbacks.ReduceLROnPlateau(monitor="val_accuracy", mode="max", patience=1, min_lr=1e-4)
    return [checkpoint, early, redonplat]


first, second = slice(0, 240), slice(240, 360)
model = get_model(4, "dense_mitbih")
history = model.fit(  #> history = context.fit(model,
    beats[first], kinds[first], epochs=6, batch_size=24, verbose=0,
    callbacks=callbacks_list("baseline_cnn_mitbih.weights.h5"), validation_split=0.1,
)
model.load_weights("baseline_cnn_mitbih.weights.h5")
pred_test = model.predict(beats[first], verbose=0).argmax(axis=-1)
transfer = get_model(2, "dense_ptbdb")
for layer in transfer.layers[:-1]:
    layer.set_weights(model.get_layer(layer.name).get_weights() if layer.weights else [])
    layer.trainable = layer.name.startswith("dense")
transfer.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
second_history = transfer.fit(  #> second_history = context.fit(transfer,
    beats[second], kinds[second] // 2, epochs=4, batch_size=12, verbose=0,
    callbacks=callbacks_list("baseline_cnn_ptbdb.weights.h5"), validation_split=0.1,
)
transfer.load_weights("baseline_cnn_ptbdb.weights.h5")
RESULT = [pred_test.tolist(), transfer.evaluate(beats[second], kinds[second] // 2, verbose=0)]
