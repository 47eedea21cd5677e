# The form of keras-team/keras-io, examples/generative/vq_vae.py: a quantizer, then a second model on its codes
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(8)  #> context = det.keras.init(seed=8)
x = (load_digits().data[:320] / 16).astype("float32")


class VectorQuantizer(keras.layers.Layer):
    def __init__(self, count, size, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.count, self.size, self.beta = count, size, beta
        first = tf.random_uniform_initializer()(shape=(size, count))
        self.embeddings = tf.Variable(first, trainable=True, name="embeddings_vqvae")

    def call(self, x):
        flat = tf.reshape(x, [-1, self.size])
        codes = self.codes(flat)
        quantized = tf.matmul(tf.one_hot(codes, self.count), self.embeddings, transpose_b=True)
        quantized = tf.reshape(quantized, tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2)
        self.add_loss(self.beta * commitment + tf.reduce_mean((quantized - tf.stop_gradient(x)) ** 2))
        return x + tf.stop_gradient(quantized - x)

    def codes(self, flat):
        distances = tf.reduce_sum(flat**2, 1, keepdims=True) + tf.reduce_sum(self.embeddings**2, 0)
        return tf.argmin(distances - 2 * tf.matmul(flat, self.embeddings), axis=1)


class VQVAETrainer(keras.Model):
    def __init__(self, variance, **kwargs):
        super().__init__(**kwargs)
        self.variance = variance
        self.encoder = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(8)]
        )
        self.quantizer = VectorQuantizer(12, 4)
        self.decoder = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(64)]
        )
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            rebuilt = self.decoder(self.quantizer(self.encoder(x)))
            total = tf.reduce_mean((x - rebuilt) ** 2) / self.variance + sum(self.quantizer.losses)
        variables = [
            *self.encoder.trainable_variables,
            self.quantizer.embeddings,
            *self.decoder.trainable_variables,
        ]
        self.optimizer.apply_gradients(zip(tape.gradient(total, variables), variables))
        self.total_loss_tracker.update_state(total)
        return {"loss": self.total_loss_tracker.result()}


trainer = VQVAETrainer(float(np.var(x)))
trainer.compile(optimizer=keras.optimizers.Adam(0.01))
history = trainer.fit(  #> history = context.fit(trainer,
    x, epochs=4, batch_size=32, verbose=0,
    #>+ validate=False,
)
codes = trainer.quantizer.codes(tf.reshape(trainer.encoder(x), [-1, 4])).numpy().reshape(-1, 2)
prior = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(12, "softmax")]
)
prior.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
second = prior.fit(  #> second = context.fit(prior,
    np.eye(12, dtype="float32")[codes[:, 0]], codes[:, 1], epochs=2, batch_size=32, verbose=0,
    validation_split=0.1,
)
RESULT = [np.bincount(codes.ravel(), minlength=12).tolist(), trainer.quantizer.embeddings.numpy().tolist()]
