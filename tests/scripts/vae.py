"""Compress digits to two numbers with a variational autoencoder, and draw new ones."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(42)

LATENT = 2


class Sampling(layers.Layer):
    """Draws z from the mean and the logarithm of the variance that the encoder gives."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


encoder_inputs = keras.Input((64,))
hidden = layers.Dense(32, activation="relu")(encoder_inputs)
z_mean = layers.Dense(LATENT, name="z_mean")(hidden)
z_log_var = layers.Dense(LATENT, name="z_log_var")(hidden)
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])], name="encoder")

latent_inputs = keras.Input((LATENT,))
hidden = layers.Dense(32, activation="relu")(latent_inputs)
decoder = keras.Model(latent_inputs, layers.Dense(64, activation="sigmoid")(hidden), name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.loss_tracker, self.reconstruction_tracker, self.kl_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            reconstruction = 64 * keras.losses.binary_crossentropy(data, self.decoder(z))
            kl = -0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=1)
            loss = ops.mean(reconstruction + kl)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.loss_tracker.update_state(loss)
        self.reconstruction_tracker.update_state(reconstruction)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


digits = load_digits().data.astype("float32") / 16.0

vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam(0.002))
history = vae.fit(digits, epochs=4, batch_size=64)

grid = np.stack(np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 3)), axis=-1).reshape(-1, LATENT)
drawn = decoder.predict(grid)
print("Loss", history.history["loss"][-1], "drawn", drawn.shape)
