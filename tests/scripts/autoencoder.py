"""Compress digits and clean noisy ones: deep autoencoders trained with the images as targets."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(90)

data = load_digits().images.astype("float32") / 16.0
train, test = data[:1280, ..., None], data[1280:, ..., None]


def noise(array):
    noisy = array + 0.4 * np.random.normal(size=array.shape)
    return np.clip(noisy, 0.0, 1.0)


noisy_train, noisy_test = noise(train), noise(test)

encoder = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2, padding="same"),
        layers.Conv2D(8, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2, padding="same"),
    ]
)
decoder = keras.Sequential(
    [
        keras.Input((2, 2, 8)),
        layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
        layers.Conv2DTranspose(16, 3, strides=2, activation="relu", padding="same"),
        layers.Conv2D(1, 3, activation="sigmoid", padding="same"),
    ]
)
inputs = keras.Input((8, 8, 1))
autoencoder = keras.Model(inputs, decoder(encoder(inputs)))
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

first = autoencoder.fit(train, train, epochs=2, batch_size=64, validation_data=(test, test))

# Now with noisy inputs and clean targets: the same model goes on as a denoiser.
second = autoencoder.fit(x=noisy_train, y=train, epochs=2, batch_size=64, validation_data=(noisy_test, test))

codes = encoder.predict(test, verbose=0).reshape(len(test), -1)
cleaned = autoencoder.predict(noisy_test, verbose=0)
print("Size of a code:", codes.shape[1])
print("Error before and after:", np.mean((noisy_test - test) ** 2), np.mean((cleaned - test) ** 2))
