"""Fill in what is hidden of a digit: an autoencoder that takes only inputs and makes its targets itself."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(29)


class MaskedAutoencoder(keras.Model):
    def __init__(self, hidden_part=0.4):
        super().__init__()
        self.hidden_part = hidden_part
        self.encoder = keras.Sequential(
            [layers.Dense(32, activation="relu"), layers.Dense(16, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [layers.Dense(32, activation="relu"), layers.Dense(64, activation="sigmoid")]
        )
        self.seed_generator = keras.random.SeedGenerator(8)

    def call(self, x):
        return self.decoder(self.encoder(x))

    def calculate_loss(self, images):
        mask = keras.random.uniform(ops.shape(images), seed=self.seed_generator) < self.hidden_part
        reconstructed = self(ops.where(mask, 0.0, images))
        weights = ops.cast(mask, "float32")
        loss = ops.sum(weights * ops.square(images - reconstructed)) / ops.sum(weights)
        return loss, reconstructed

    def train_step(self, images):
        with tf.GradientTape() as tape:
            loss, reconstructed = self.calculate_loss(images)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(images, reconstructed)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, images):
        loss, reconstructed = self.calculate_loss(images)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(images, reconstructed)
        return {metric.name: metric.result() for metric in self.metrics}


digits = load_digits().data.astype("float32") / 16.0
train, test = digits[:1344], digits[1344:]

model = MaskedAutoencoder()
model.compile(optimizer=keras.optimizers.AdamW(0.003), loss="mse", metrics=["mae"])
history = model.fit(x=train, epochs=3, batch_size=64)

scores = model.evaluate(test, return_dict=True)
print("On other digits:", scores)
