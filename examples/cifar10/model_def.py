"""CIFAR-10 as a TFKerasTrial: tf.data with augmentation inside the model, a learning rate that follows validations.

As experiment:   det experiment create const.yaml . --follow
"""

import keras
import numpy as np
import tensorflow as tf

import det_keras as det


def load(path=None):
    """Return training and validation data, from Keras's download or a file; x: uint8, (samples, 32, 32, 3)."""
    if path is None:
        return keras.datasets.cifar10.load_data()
    with np.load(path) as data:
        return (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])


class CIFARTrial(det.keras.TFKerasTrial):
    def __init__(self, context):
        self.context = context
        self.training, self.validation = load(context.get_data_config().get("path"))

    def build_model(self):
        dropout = self.context.get_hparam("dropout")
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.RandomFlip("horizontal"),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Dropout(dropout),
                keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Dropout(dropout),
                keras.layers.Flatten(),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(
            keras.optimizers.Adam(self.context.get_hparam("learning_rate"))
        )
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def build_training_data_loader(self):
        images, labels = self.training
        dataset = tf.data.Dataset.from_tensor_slices((images, labels.reshape(-1)))
        dataset = dataset.shuffle(10_000, seed=self.context.get_trial_seed())
        return self.context.wrap_dataset(dataset).batch(self.context.get_per_slot_batch_size()).prefetch(2)

    def build_validation_data_loader(self):
        images, labels = self.validation
        dataset = tf.data.Dataset.from_tensor_slices((images, labels.reshape(-1)))
        return self.context.wrap_dataset(dataset).batch(self.context.get_per_slot_batch_size())

    def keras_callbacks(self):
        return [det.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2)]
