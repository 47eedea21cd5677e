"""Describe digits in words: a CNN and a transformer decoder in a model with its own training step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(17)

NAMES = "zero one two three four five six seven eight nine".split()
LENGTH, WIDTH = 8, 16

digits = load_digits()
images = digits.images[:480, ..., None].astype("float32") / 16.0
captions = [
    f"<start> a {'bold' if image.mean() > 0.31 else 'thin'} {NAMES[label]} <end>"
    for image, label in zip(images, digits.target)
]
vectorization = layers.TextVectorization(output_sequence_length=LENGTH, standardize="lower")
vectorization.adapt(captions)
vocabulary = vectorization.get_vocabulary()

rows = tf.data.Dataset.from_tensor_slices((images, captions))
dataset = rows.shuffle(480).map(lambda image, text: (image, vectorization(text))).batch(16).prefetch(2)
train, valid = dataset.skip(5), dataset.take(5)


class Decoder(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(len(vocabulary), WIDTH)
        self.position = layers.Embedding(LENGTH, WIDTH)
        self.self_attention = layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.1)
        self.cross_attention = layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.1)
        self.norm = layers.LayerNormalization()
        self.out = layers.Dense(len(vocabulary), activation="softmax")

    def call(self, tokens, features, training=False):
        x = self.embedding(tokens) + self.position(ops.arange(ops.shape(tokens)[1]))
        x = x + self.self_attention(x, x, use_causal_mask=True, training=training)
        x = x + self.cross_attention(x, features, training=training)
        return self.out(self.norm(x))


class ImageCaptioningModel(keras.Model):
    def __init__(self, cnn, decoder):
        super().__init__()
        self.cnn = cnn
        self.decoder = decoder
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.acc_tracker = keras.metrics.Mean(name="accuracy")

    def compute(self, batch, training):
        images, sequence = batch
        predictions = self.decoder(sequence[:, :-1], self.cnn(images), training=training)
        true, mask = sequence[:, 1:], ops.cast(ops.not_equal(sequence[:, 1:], 0), "float32")
        loss = ops.sum(self.loss(true, predictions) * mask) / ops.sum(mask)
        right = ops.cast(ops.equal(true, ops.argmax(predictions, axis=2)), "float32")
        return loss, ops.sum(right * mask) / ops.sum(mask)

    def track(self, loss, accuracy):
        self.loss_tracker.update_state(loss)
        self.acc_tracker.update_state(accuracy)
        return {"loss": self.loss_tracker.result(), "acc": self.acc_tracker.result()}

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss, accuracy = self.compute(batch, training=True)
        variables = self.cnn.trainable_variables + self.decoder.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return self.track(loss, accuracy)

    def test_step(self, batch):
        return self.track(*self.compute(batch, training=False))

    @property
    def metrics(self):
        return [self.loss_tracker, self.acc_tracker]


cnn = keras.Sequential(
    [keras.Input((8, 8, 1)), layers.Conv2D(WIDTH, 3, 2, activation="relu"), layers.Reshape((9, WIDTH))]
)
model = ImageCaptioningModel(cnn, Decoder())
loss = keras.losses.SparseCategoricalCrossentropy(reduction="none")
early_stopping = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
model.compile(optimizer=keras.optimizers.Adam(0.005), loss=loss)
history = model.fit(train, epochs=4, validation_data=valid, callbacks=[early_stopping])

tokens = np.array([vocabulary.index("<start>")])[None]
for _ in range(LENGTH - 2):
    predictions = model.decoder(tokens, model.cnn(images[:1]))
    tokens = np.concatenate([tokens, ops.argmax(predictions[:, -1:], axis=-1)], axis=1)
print(" ".join(vocabulary[token] for token in tokens[0]))
