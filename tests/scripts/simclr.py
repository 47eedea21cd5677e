"""Learn from unlabelled digits by contrasting augmentations (SimCLR), and probe with few labels."""

import keras
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(6)

digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16.0, digits.target.astype("int64")
unlabeled = tf.data.Dataset.from_tensor_slices(images[:1200]).shuffle(1200).batch(40)
labeled = tf.data.Dataset.from_tensor_slices((images[1200:1500], labels[1200:1500])).shuffle(300).batch(10)
train = tf.data.Dataset.zip((unlabeled, labeled)).prefetch(tf.data.AUTOTUNE)
test = tf.data.Dataset.from_tensor_slices((images[1500:], labels[1500:])).batch(50)


def get_augmenter(amount):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(amount, amount),
            layers.RandomZoom((-amount, 0.0), (-amount, 0.0)),
            layers.GaussianNoise(amount),
        ]
    )


def get_encoder():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
        ]
    )


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.strong, self.weak = get_augmenter(0.2), get_augmenter(0.1)
        self.encoder = get_encoder()
        self.projection = keras.Sequential(
            [keras.Input((16,)), layers.Dense(16, activation="relu"), layers.Dense(16)]
        )
        self.probe = keras.Sequential([keras.Input((16,)), layers.Dense(10)])

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.c_loss, self.p_loss = keras.metrics.Mean(name="c_loss"), keras.metrics.Mean(name="p_loss")
        self.p_acc = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [self.c_loss, self.p_loss, self.p_acc]

    def contrast(self, first, second):
        first, second = ops.normalize(first, axis=1), ops.normalize(second, axis=1)
        similarities = ops.matmul(first, ops.transpose(second)) / 0.1
        targets = ops.arange(ops.shape(first)[0])
        return ops.mean(keras.losses.sparse_categorical_crossentropy(targets, similarities, from_logits=True))

    def train_step(self, data):
        unlabeled_images, (labeled_images, labels) = data
        images = ops.concatenate((unlabeled_images, labeled_images), axis=0)
        first, second = self.strong(images, training=True), self.strong(images, training=True)
        with tf.GradientTape() as tape:
            projections = [self.projection(self.encoder(view, training=True)) for view in (first, second)]
            loss = self.contrast(*projections)
        weights = self.encoder.trainable_weights + self.projection.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.c_loss.update_state(loss)

        with tf.GradientTape() as tape:
            logits = self.probe(self.encoder(self.weak(labeled_images, training=True), training=False))
            loss = self.probe_loss(labels, logits)
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.p_loss.update_state(loss)
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        images, labels = data
        logits = self.probe(self.encoder(images, training=False), training=False)
        self.p_loss.update_state(self.probe_loss(labels, logits))
        self.p_acc.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics[1:]}


model = ContrastiveModel()
model.compile(contrastive_optimizer=keras.optimizers.Adam(), probe_optimizer=keras.optimizers.Adam())
history = model.fit(train, epochs=3, validation_data=test)
print("Best accuracy of the probe:", max(history.history["val_p_acc"]))
