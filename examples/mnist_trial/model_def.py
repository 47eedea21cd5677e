"""MNIST as a TFKerasTrial, as Determined's tutorial had it.

As experiment:   det experiment create const.yaml . --follow
Alone:           det experiment create const.yaml . --local
"""

import keras
import numpy as np
from determined.keras import InMemorySequence, TFKerasTrial, TFKerasTrialContext


def load(path=None):
    """Return training and validation data, from Keras's download or a file like it; x: uint8, (samples, 28, 28)."""
    if path is None:
        return keras.datasets.mnist.load_data()
    with np.load(path) as data:
        return (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])


class MNISTTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext):
        self.context = context
        self.training, self.validation = load(context.get_data_config().get("path"))

    def build_model(self):
        model = keras.Sequential(
            [
                keras.Input((28, 28)),
                keras.layers.Flatten(),
                keras.layers.Dense(self.context.get_hparam("n_units"), activation="relu"),
                keras.layers.Dropout(self.context.get_hparam("dropout")),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model = self.context.wrap_model(model)
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=self.context.get_hparam("learning_rate")),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self):
        return self.loader(*self.training)

    def build_validation_data_loader(self):
        return self.loader(*self.validation)

    def loader(self, images, labels):
        images = (images / 255.0).astype("float32")
        return InMemorySequence(images, labels.astype("int64"), self.context.get_per_slot_batch_size())
