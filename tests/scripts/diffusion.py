"""Denoise digits step by step: a small diffusion model with an averaged copy of its network."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(9)

EMA = 0.98

images = load_digits().images[:512, ..., None].astype("float32") / 16.0
dataset = (
    tf.data.Dataset.from_tensor_slices(images)
    .cache()
    .repeat(2)
    .shuffle(1024, seed=2)
    .batch(32, drop_remainder=True)
)


def get_network():
    noisy = keras.Input((8, 8, 1))
    variance = keras.Input((1, 1, 1))
    angles = ops.concatenate([ops.sin(6.3 * variance), ops.cos(6.3 * variance)], axis=-1)
    x = layers.Concatenate()([noisy, layers.UpSampling2D(8)(angles)])
    x = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
    return keras.Model([noisy, variance], layers.Conv2D(1, 1, kernel_initializer="zeros")(x))


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)
        self.seed_generator = keras.random.SeedGenerator(4)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker]

    def denoise(self, network, noisy, noise_rates, signal_rates, training):
        noises = network([noisy, noise_rates**2], training=training)
        return noises, (noisy - noise_rates * noises) / signal_rates

    def train_step(self, images):
        images = self.normalizer(images, training=True)
        noises = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        times = keras.random.uniform((ops.shape(images)[0], 1, 1, 1), 0.05, 0.95, seed=self.seed_generator)
        angles = times * 1.5708
        noisy = ops.cos(angles) * images + ops.sin(angles) * noises
        with tf.GradientTape() as tape:
            predicted, _ = self.denoise(self.network, noisy, ops.sin(angles), ops.cos(angles), training=True)
            loss = self.loss(noises, predicted)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        self.noise_loss_tracker.update_state(loss)
        for weight, average in zip(self.network.weights, self.ema_network.weights):
            average.assign(EMA * average + (1 - EMA) * weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, images):
        images = self.normalizer(images, training=False)
        noises = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        rates = ops.full((ops.shape(images)[0], 1, 1, 1), 0.7071)
        predicted, _ = self.denoise(self.ema_network, rates * (images + noises), rates, rates, training=False)
        self.noise_loss_tracker.update_state(self.loss(noises, predicted))
        return {metric.name: metric.result() for metric in self.metrics}


model = DiffusionModel()
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4), loss=keras.losses.mean_absolute_error
)
model.normalizer.adapt(dataset)

save = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: model.ema_network.save_weights(f"ema_{epoch}.weights.h5")
)
history = model.fit(dataset, epochs=3, validation_data=dataset.take(4), callbacks=[save])
