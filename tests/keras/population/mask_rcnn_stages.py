# The form of matterport/Mask_RCNN, mrcnn/model.py: a class around the model counts epochs over several calls of train
import re

import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(21)  #> context = det.keras.init(seed=21)


class Dataset:
    def __init__(self, count):
        self.images = np.random.normal(size=(count, 10)).astype("float32")
        self.image_ids = np.arange(count)


def data_generator(dataset, shuffle=True, augment=True, batch_size=8):
    b, image_index = 0, -1
    image_ids = np.copy(dataset.image_ids)
    while True:
        image_index = (image_index + 1) % len(image_ids)
        if shuffle and image_index == 0:
            np.random.shuffle(image_ids)
        image = dataset.images[image_ids[image_index]]
        if augment and np.random.randint(0, 2):
            image = image[::-1]
        if b == 0:
            batch_images = np.zeros((batch_size, 10), dtype="float32")
        batch_images[b] = image
        b += 1
        if b >= batch_size:
            yield batch_images, np.abs(batch_images).max(axis=1, keepdims=True)
            b = 0


class MaskRCNN:
    def __init__(self):
        self.epoch = 0
        layers = [
            keras.layers.Dense(16, "relu", name=name)
            for name in ("res3", "res4", "mrcnn_class", "mrcnn_mask")
        ]
        self.keras_model = keras.Sequential(
            [keras.Input((10,)), *layers, keras.layers.Dense(1, name="mrcnn_box")]
        )

    def compile(self, learning_rate):
        optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9, clipnorm=5.0)
        self.keras_model.compile(optimizer, "mse")

    def set_trainable(self, layer_regex):
        for layer in self.keras_model.layers:
            layer.trainable = bool(re.fullmatch(layer_regex, layer.name))

    def train(self, train_dataset, val_dataset, learning_rate, epochs, layers):
        regex = {"heads": r"(mrcnn\_.*)", "4+": r"(res4.*)|(mrcnn\_.*)", "all": ".*"}[layers]
        self.set_trainable(regex)
        self.compile(learning_rate)
        callback = keras.callbacks.ModelCheckpoint("mask_rcnn_{epoch:04d}.weights.h5", save_weights_only=True)
        self.keras_model.fit(  #> context.fit(self.keras_model,
            data_generator(train_dataset), initial_epoch=self.epoch, epochs=epochs, steps_per_epoch=8,
            verbose=0, callbacks=[callback], validation_data=data_generator(val_dataset), validation_steps=3,
        )
        self.epoch = max(self.epoch, epochs)


training, validation = Dataset(60), Dataset(20)
model = MaskRCNN()
model.train(training, validation, 0.01, epochs=2, layers="heads")
model.train(training, validation, 0.01, epochs=4, layers="4+")
model.train(training, validation, 0.001, epochs=6, layers="all")
RESULT = [model.epoch, model.keras_model.predict(validation.images, verbose=0).sum().item()]
