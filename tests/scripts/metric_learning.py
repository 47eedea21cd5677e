"""Embed digits so that those of one class are close, with a training step of its own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(21)

CLASSES = 10

digits = load_digits()
x_train, y_train = digits.images[:1400, ..., None].astype("float32") / 16.0, digits.target[:1400]
x_test, y_test = digits.images[1400:, ..., None].astype("float32") / 16.0, digits.target[1400:]
of_class = {label: np.flatnonzero(y_train == label) for label in range(CLASSES)}


class AnchorPositivePairs(keras.utils.Sequence):
    """Each batch is one pair of each class."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        pairs = np.empty((2, CLASSES, 8, 8, 1), dtype="float32")
        for label in range(CLASSES):
            anchor, positive = rng.choice(of_class[label], 2, replace=False)
            pairs[0, label] = x_train[anchor]
            pairs[1, label] = x_train[positive]
        return pairs


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        # A dataset that is not a tuple may come as one with a single item.
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            anchor_embeddings = self(anchors, training=True)
            positive_embeddings = self(positives, training=True)
            similarities = ops.einsum("ae,pe->ap", anchor_embeddings, positive_embeddings) / 0.2
            labels = ops.arange(CLASSES)
            loss = self.compute_loss(y=labels, y_pred=similarities)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, similarities)
        return {metric.name: metric.result() for metric in self.metrics}


inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, strides=2, activation="relu")(inputs)
x = layers.Conv2D(32, 3, activation="relu")(x)
x = layers.GlobalAveragePooling2D()(x)
embeddings = layers.UnitNormalization()(layers.Dense(8)(x))
model = EmbeddingModel(inputs, embeddings)
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(AnchorPositivePairs(batches=25), epochs=4)

embedded = model.predict(x_test)
gram = embedded @ embedded.T
np.fill_diagonal(gram, -1.0)
print("Nearest neighbour of the same class:", np.mean(y_test[gram.argmax(axis=1)] == y_test))
