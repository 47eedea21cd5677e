"""Draw points on a circle with a Wasserstein GAN with gradient penalty."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(11)

LATENT = 8
CRITIC_STEPS = 2

angles = np.random.uniform(0, 2 * np.pi, 640)
points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")

critic = keras.Sequential([keras.Input((2,)), layers.Dense(32, activation="relu"), layers.Dense(1)])
generator = keras.Sequential([keras.Input((LATENT,)), layers.Dense(32, activation="relu"), layers.Dense(2)])


class WGAN(keras.Model):
    def __init__(self, critic, generator, gp_weight=10.0):
        super().__init__()
        self.critic = critic
        self.generator = generator
        self.gp_weight = gp_weight
        self.seed_generator = keras.random.SeedGenerator(5)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer

    def noise(self, batch_size):
        return keras.random.normal((batch_size, LATENT), seed=self.seed_generator)

    def gradient_penalty(self, real, fake):
        alpha = keras.random.uniform((tf.shape(real)[0], 1), seed=self.seed_generator)
        between = real + alpha * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.critic(between, training=True)
        gradients = tape.gradient(score, between)
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=1) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real):
        batch_size = tf.shape(real)[0]
        for _ in range(CRITIC_STEPS):
            with tf.GradientTape() as tape:
                fake = self.generator(self.noise(batch_size), training=True)
                cost = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
                d_loss = cost + self.gp_weight * self.gradient_penalty(real, fake)
            gradients = tape.gradient(d_loss, self.critic.trainable_variables)
            self.d_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables))
        with tf.GradientTape() as tape:
            fake = self.generator(self.noise(batch_size), training=True)
            g_loss = -tf.reduce_mean(self.critic(fake))
        gradients = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables))
        return {"d_loss": d_loss, "g_loss": g_loss}


class Monitor(keras.callbacks.Callback):
    """Prints how far from the circle the generator's points are."""

    def on_epoch_end(self, epoch, logs=None):
        noise = keras.random.normal((64, LATENT), seed=epoch)
        radius = np.linalg.norm(self.model.generator(noise), axis=1)
        print(f"epoch {epoch}: radius {radius.mean():.3f}")


wgan = WGAN(critic, generator)
wgan.compile(
    d_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(1e-3, beta_1=0.5, beta_2=0.9),
)
history = wgan.fit(points, epochs=4, shuffle=False, callbacks=[Monitor()])
