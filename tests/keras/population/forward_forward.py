# The form of keras-team/keras-io, examples/vision/forwardforward.py: each layer has an optimizer and trains itself
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(56)  #> context = det.keras.init(seed=56)
x, y = load_digits(return_X_y=True)
x, y = (x[:300] / 16).astype("float32"), y[:300]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(30)


class FFDense(keras.layers.Layer):
    def __init__(self, units, optimizer, num_epochs=2, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(units)
        self.optimizer, self.num_epochs, self.threshold = optimizer, num_epochs, 1.5
        self.loss_metric = keras.metrics.Mean()

    def call(self, x):
        return tf.nn.relu(self.dense(x / (tf.norm(x, axis=1, keepdims=True) + 1e-4)))

    def forward_forward(self, x_pos, x_neg):
        for _ in range(self.num_epochs):
            with tf.GradientTape() as tape:
                g_pos = tf.reduce_mean(self.call(x_pos) ** 2, 1)
                g_neg = tf.reduce_mean(self.call(x_neg) ** 2, 1)
                gap = tf.concat([self.threshold - g_pos, g_neg - self.threshold], 0)
                mean_loss = tf.reduce_mean(tf.math.softplus(gap))
            weights = self.dense.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(mean_loss, weights), weights))
            self.loss_metric.update_state(mean_loss)
        return tf.stop_gradient(self.call(x_pos)), tf.stop_gradient(self.call(x_neg))


class FFNetwork(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.layer_list = [FFDense(count, keras.optimizers.Adam(0.03)) for count in units]
        for layer, size in zip(self.layer_list, [64, *units]):
            layer.dense.build((None, size))
        self.loss_count = keras.Variable(0, trainable=False, dtype="int32")

    def overlay(self, x, labels):
        return tf.concat([tf.one_hot(labels, 10) * tf.reduce_max(x), x[:, 10:]], axis=1)

    def train_step(self, data):
        x, y = data
        self.loss_count.assign_add(1)
        h_pos, h_neg = self.overlay(x, y), self.overlay(x, tf.roll(y, 1, axis=0))
        for layer in self.layer_list:
            h_pos, h_neg = layer.forward_forward(h_pos, h_neg)
        return {"FinalLoss": tf.add_n([layer.loss_metric.result() for layer in self.layer_list])}


model = FFNetwork([24, 24])
model.compile(jit_compile=False)
history = model.fit(  #> history = context.fit(model,
    dataset, epochs=5, verbose=0,
    #>+ validate=False,
)
layers = model.layer_list
momenta = [[float(np.abs(v.numpy()).sum()) for v in layer.optimizer.variables] for layer in layers]
RESULT = [int(model.loss_count.numpy()), momenta]
