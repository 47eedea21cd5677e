"""Fashion-MNIST as a TFKerasTrial: arrays as data, early stopping on validations.

As experiment:   det experiment create const.yaml . --follow
"""

import keras
import numpy as np

import det_keras as det


def load(path=None):
    """Return training and validation data, from Keras's download or a file like it; x: uint8, (samples, 28, 28)."""
    if path is None:
        return keras.datasets.fashion_mnist.load_data()
    with np.load(path) as data:
        return (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])


class FashionMNISTTrial(det.keras.TFKerasTrial):
    def __init__(self, context):
        self.context = context
        self.training, self.validation = load(context.get_data_config().get("path"))

    def build_model(self):
        model = keras.Sequential(
            [
                keras.Input((28, 28)),
                keras.layers.Flatten(),
                keras.layers.Dense(self.context.get_hparam("dense1"), activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(
            keras.optimizers.SGD(self.context.get_hparam("learning_rate"))
        )
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    def build_training_data_loader(self):
        images, labels = self.training
        return (images / 255.0).astype("float32"), labels

    def build_validation_data_loader(self):
        images, labels = self.validation
        return (images / 255.0).astype("float32"), labels

    def keras_callbacks(self):
        return [det.keras.callbacks.EarlyStopping(monitor="val_loss", patience=3)]
