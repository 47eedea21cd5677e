# The form of keras-team/keras-io, examples/vision/siamese_network.py: triplets of zipped datasets
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(37)  #> context = det.keras.init(seed=37)
images = (load_digits().data[:300] / 16).astype("float32")
anchors, positives = images[:150], images[150:]
rng = np.random.RandomState(seed=32)
rng.shuffle(anchors)
rng.shuffle(positives)
negatives = np.concatenate([anchors, positives])
np.random.RandomState(seed=32).shuffle(negatives)
dataset = tf.data.Dataset.zip(
    (
        tf.data.Dataset.from_tensor_slices(anchors),
        tf.data.Dataset.from_tensor_slices(positives),
        tf.data.Dataset.from_tensor_slices(negatives).shuffle(buffer_size=64),
    )
)
dataset = dataset.shuffle(buffer_size=100)
train_dataset = dataset.take(120).batch(12).prefetch(tf.data.AUTOTUNE)
val_dataset = dataset.skip(120).batch(12).prefetch(tf.data.AUTOTUNE)
embedding = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.BatchNormalization()]
)
embedding.add(keras.layers.Dense(8))


class SiameseModel(keras.Model):
    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding, self.margin = embedding, margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def _compute_loss(self, data, training):
        anchor, positive, negative = (self.embedding(part, training=training) for part in data)
        ap_distance = tf.reduce_sum((anchor - positive) ** 2, -1)
        an_distance = tf.reduce_sum((anchor - negative) ** 2, -1)
        return tf.maximum(ap_distance - an_distance + self.margin, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data, training=True)
        weights = self.embedding.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data, training=False))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


siamese_model = SiameseModel(embedding)
siamese_model.compile(optimizer=keras.optimizers.Adam(0.001), weighted_metrics=[])
history = siamese_model.fit(  #> history = context.fit(siamese_model,
    train_dataset, epochs=4, validation_data=val_dataset, verbose=0,
)
