"""Train a generator and a discriminator in turns, in a loop written by hand."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(52)

LATENT, BATCH = 16, 32
images = load_digits().images[:384, ..., None].astype("float32") / 8.0 - 1.0

discriminator = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Dropout(0.2),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((LATENT,)),
        layers.Dense(4 * 4 * 16),
        layers.Reshape((4, 4, 16)),
        layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
    ]
)
d_optimizer, g_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
noise = keras.random.SeedGenerator(53)
history = {"d_loss": keras.metrics.Mean(), "g_loss": keras.metrics.Mean()}


@tf.function
def train_discriminator(real):
    rows = tf.shape(real)[0]
    fake = generator(keras.random.normal((rows, LATENT), seed=noise))
    with tf.GradientTape() as tape:
        answers = discriminator(tf.concat([fake, real], 0), training=True)
        loss = cross_entropy(tf.concat([tf.zeros((rows, 1)), tf.ones((rows, 1))], 0), answers)
    gradients = tape.gradient(loss, discriminator.trainable_variables)
    d_optimizer.apply(gradients, discriminator.trainable_variables)
    return loss


@tf.function
def train_generator(rows):
    with tf.GradientTape() as tape:
        answers = discriminator(generator(keras.random.normal((rows, LATENT), seed=noise)))
        loss = cross_entropy(tf.ones((rows, 1)), answers)
    gradients = tape.gradient(loss, generator.trainable_variables)
    g_optimizer.apply(gradients, generator.trainable_variables)
    return loss


for _ in range(3):
    # Each epoch sees the images in an order of its own.
    order = np.random.permutation(len(images))
    for real in tf.data.Dataset.from_tensor_slices(images[order]).batch(BATCH):
        history["d_loss"].update_state(train_discriminator(real))
        history["g_loss"].update_state(train_generator(tf.shape(real)[0]))
