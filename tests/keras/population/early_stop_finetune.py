# The form of keras-team/keras issue #12511 and keras-io, guides/transfer_learning.py: one EarlyStopping for two fits
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(50)  #> context = det.keras.init(seed=50)
x, y = load_digits(return_X_y=True)
x, y = (x[:500] / 16).reshape(-1, 8, 8, 1).astype("float32"), y[:500]
base_model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(6, 3, activation="relu")])
base_model.add(keras.layers.BatchNormalization())
base_model.add(keras.layers.GlobalAveragePooling2D())
odd = keras.Sequential([base_model, keras.layers.Dense(1, activation="sigmoid")])
odd.compile("adam", "binary_crossentropy")
source = odd.fit(  #> source = context.fit(odd,
    x[:200], y[:200] % 2, batch_size=20, epochs=2, verbose=0,
    #>+ validate=False,
)
base_model.trainable = False
inputs = keras.Input((8, 8, 1))
hidden = keras.layers.RandomTranslation(0.1, 0.1)(inputs)
hidden = keras.layers.Dropout(0.2)(base_model(hidden, training=False))
model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden))
model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
options = {"validation_data": (x[400:], y[400:]), "callbacks": [stopping], "batch_size": 20, "verbose": 0}
first = model.fit(  #> first = context.fit(model,
    x[200:400], y[200:400], epochs=6, **options,
)
stopped = [stopping.stopped_epoch, stopping.best_epoch, float(stopping.best)]
base_model.trainable = True
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
second = model.fit(  #> second = context.fit(model,
    x[200:400], y[200:400], epochs=4, **options,
)
RESULT = [stopped, stopping.stopped_epoch, stopping.best_epoch, np.argmin(second.history["val_loss"]).item()]
