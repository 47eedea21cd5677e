"""Search hyperparameters with Keras Tuner, then train with the best."""

import keras
import keras_tuner
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(12)

digits = load_digits()
x, y = (digits.data / 16.0).astype("float32"), digits.target
x_train, x_val, y_train, y_val = x[:600], x[600:900], y[:600], y[600:900]


class DigitsHyperModel(keras_tuner.HyperModel):
    def build(self, hp):
        model = keras.Sequential([keras.Input((64,))])
        for i in range(hp.Int("num_layers", 1, 2)):
            units = hp.Int(f"units_{i}", min_value=8, max_value=32, step=8)
            model.add(layers.Dense(units, activation=hp.Choice("activation", ["relu", "tanh"])))
        if hp.Boolean("dropout"):
            model.add(layers.Dropout(rate=0.25))
        model.add(layers.Dense(10, activation="softmax"))
        learning_rate = hp.Float("lr", min_value=1e-3, max_value=1e-2, sampling="log")
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=learning_rate),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def fit(self, hp, model, *args, **kwargs):
        return model.fit(*args, batch_size=hp.Choice("batch_size", [32, 64]), **kwargs)


tuner = keras_tuner.RandomSearch(
    hypermodel=DigitsHyperModel(),
    objective="val_accuracy",
    max_trials=3,
    seed=5,
    overwrite=True,
    directory="my_dir",
    project_name="digits",
)
tuner.search(x_train, y_train, epochs=1, validation_data=(x_val, y_val))
tuner.results_summary()

best = tuner.get_best_hyperparameters()[0]
print("Best hyperparameters:", best.values)

hypermodel = DigitsHyperModel()
model = hypermodel.build(best)
history = hypermodel.fit(best, model, x, y, epochs=2, validation_split=0.2)
print("Accuracy with the best hyperparameters:", history.history["val_accuracy"][-1])
