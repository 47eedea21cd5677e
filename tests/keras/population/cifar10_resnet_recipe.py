# The form of keras-team/keras, examples/cifar10_resnet.py: three callbacks on the rate, and flow of a fitted generator
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(24)  #> context = det.keras.init(seed=24)
x, y = load_digits(return_X_y=True)
x = (x[:320] / 16).reshape(-1, 8, 8, 1).astype("float32")
y = keras.utils.to_categorical(y[:320], 10)
x_train, y_train, x_test, y_test = x[:256], y[:256], x[256:], y[256:]
x_train_mean = np.mean(x_train, axis=0)
x_train, x_test = x_train - x_train_mean, x_test - x_train_mean


def lr_schedule(epoch):
    lr = 1e-2
    return lr * 0.1 if epoch > 2 else lr


def resnet_layer(inputs, activation="relu"):
    x = keras.layers.Conv2D(6, 3, padding="same", kernel_regularizer=keras.regularizers.L2(1e-4))(inputs)
    x = keras.layers.BatchNormalization()(x)
    return keras.layers.Activation(activation)(x) if activation else x


inputs = keras.Input((8, 8, 1))
x = resnet_layer(inputs)
x = keras.layers.Activation("relu")(keras.layers.add([x, resnet_layer(resnet_layer(x), activation=None)]))
x = keras.layers.Flatten()(keras.layers.AveragePooling2D(4)(x))
model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x))
model.compile(keras.optimizers.Adam(lr_schedule(0)), "categorical_crossentropy", metrics=["accuracy"])
checkpoint = keras.callbacks.ModelCheckpoint(
    "cifar10_model.{epoch:03d}.keras", monitor="val_accuracy", save_best_only=True
)
lr_reducer = keras.callbacks.ReduceLROnPlateau(factor=np.sqrt(0.1), cooldown=0, patience=1, min_lr=0.5e-6)
callbacks = [checkpoint, lr_reducer, keras.callbacks.LearningRateScheduler(lr_schedule)]
datagen = tf.keras.preprocessing.image.ImageDataGenerator(
    featurewise_std_normalization=True, width_shift_range=0.1, height_shift_range=0.1
)
datagen.fit(x_train)
history = model.fit(  #> history = context.fit(model,
    datagen.flow(x_train, y_train, batch_size=32), validation_data=(x_test, y_test), epochs=5, verbose=0,
    callbacks=callbacks,
)
RESULT = model.evaluate(x_test, y_test, verbose=0)
