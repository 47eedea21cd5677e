# The form of XifengGuo/CapsNet-Keras, capsulenet.py: margin loss and reconstruction, a generator of dicts, a CSV log
import csv

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(25)  #> context = det.keras.init(seed=25)
x, y = load_digits(return_X_y=True)
x, y = (x[:320] / 16).reshape(-1, 8, 8, 1).astype("float32"), np.eye(10, dtype="float32")[y[:320]]
x_train, y_train, x_test, y_test = x[:256], y[:256], x[256:], y[256:]

image, label = keras.Input((8, 8, 1)), keras.Input((10,))
capsules = keras.layers.Dense(40)(keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu")(image)))
capsules = keras.layers.Reshape((10, 4))(capsules)
length = keras.layers.Lambda(
    lambda z: ops.sqrt(ops.sum(ops.square(ops.tanh(z)), -1) / 4 + 1e-7), name="capsnet"
)
masked = keras.layers.Flatten()(capsules * keras.layers.Reshape((10, 1))(label))
decoder = keras.Sequential(
    [keras.Input((40,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(64, "sigmoid")]
)
decoder.add(keras.layers.Reshape((8, 8, 1)))
decoded = keras.layers.Identity(name="decoder")(decoder(masked))
train_model = keras.Model([image, label], [length(capsules), decoded])


def margin_loss(y_true, y_pred):
    lost = y_true * ops.square(ops.maximum(0.0, 0.9 - y_pred))
    lost += 0.5 * (1 - y_true) * ops.square(ops.maximum(0.0, y_pred - 0.1))
    return ops.mean(ops.sum(lost, 1))


def train_generator(x, y, batch_size, shift_fraction=0.1):
    datagen = tf.keras.preprocessing.image.ImageDataGenerator(
        width_shift_range=shift_fraction, height_shift_range=shift_fraction
    )
    generator = datagen.flow(x, y, batch_size=batch_size)
    while True:
        x_batch, y_batch = next(generator)
        yield (x_batch, y_batch), (y_batch, x_batch)


log = keras.callbacks.CSVLogger("log.csv")
checkpoint = keras.callbacks.ModelCheckpoint(
    "weights-{epoch:02d}.weights.h5",
    monitor="val_capsnet_accuracy",
    save_best_only=True,
    save_weights_only=True,
    mode="max",
)
lr_decay = keras.callbacks.LearningRateScheduler(schedule=lambda epoch: 0.005 * (0.9**epoch))
train_model.compile(
    keras.optimizers.Adam(0.005), [margin_loss, "mse"], loss_weights=[1.0, 0.392], metrics=[["accuracy"], []]
)
history = train_model.fit(  #> history = context.fit(train_model,
    train_generator(x_train, y_train, 32), steps_per_epoch=8, epochs=5, verbose=0,
    validation_data=((x_test, y_test), (y_test, x_test)), callbacks=[log, checkpoint, lr_decay],
)
with open("log.csv") as file:
    RESULT = list(csv.reader(file))
