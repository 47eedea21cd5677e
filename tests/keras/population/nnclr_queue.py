# The form of keras-team/keras-io, examples/vision/nnclr.py: a queue of features, a probe, and an optimizer for each
import keras
import tensorflow as tf
from keras import ops
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(55)  #> context = det.keras.init(seed=55)
x, y = load_digits(return_X_y=True)
x, y = (x[:460] / 16).astype("float32"), y[:460]
unlabeled = tf.data.Dataset.from_tensor_slices(x[:300]).shuffle(300).batch(30)
labeled = tf.data.Dataset.from_tensor_slices((x[300:400], y[300:400])).shuffle(100).batch(10)
train_dataset = tf.data.Dataset.zip((unlabeled, labeled)).prefetch(tf.data.AUTOTUNE)
test_dataset = tf.data.Dataset.from_tensor_slices((x[400:], y[400:])).batch(20)


class NNCLR(keras.Model):
    def __init__(self, temperature=0.1, queue_size=60):
        super().__init__()
        self.temperature = temperature
        self.augmenter = keras.Sequential([keras.Input((64,)), keras.layers.GaussianNoise(0.2, seed=3)])
        self.encoder = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu")])
        self.projection_head = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
        self.linear_probe = keras.Sequential([keras.Input((16,)), keras.layers.Dense(10)])
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")
        first = ops.normalize(keras.random.normal((queue_size, 16)), axis=1)
        self.feature_queue = self.add_weight(shape=(queue_size, 16), trainable=False, initializer="zeros")
        self.feature_queue.assign(first)

    def compile(self, contrastive_optimizer, probe_optimizer):
        super().compile()
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer

    def nearest_neighbour(self, projections):
        similarity = tf.matmul(projections, self.feature_queue, transpose_b=True)
        found = tf.gather(self.feature_queue, tf.argmax(similarity, axis=1))
        return projections + tf.stop_gradient(found - projections)

    def contrastive_loss(self, first, second):
        first, second = tf.math.l2_normalize(first, axis=1), tf.math.l2_normalize(second, axis=1)
        similarity = tf.matmul(self.nearest_neighbour(first), second, transpose_b=True) / self.temperature
        labels = tf.range(tf.shape(first)[0])
        self.feature_queue.assign(tf.concat([first, self.feature_queue[: -tf.shape(first)[0]]], axis=0))
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(labels, similarity, from_logits=True)
        )

    def train_step(self, data):
        images, (labeled_images, labels) = data
        with tf.GradientTape() as tape:
            views = [self.encoder(self.augmenter(images, training=True)) for _ in range(2)]
            loss = self.contrastive_loss(*map(self.projection_head, views))
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            logits = self.linear_probe(self.encoder(self.augmenter(labeled_images, training=True)))
            probe_loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            )
        weights = self.linear_probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights))
        self.probe_accuracy.update_state(labels, logits)
        return {"c_loss": loss, "p_loss": probe_loss, "p_acc": self.probe_accuracy.result()}

    def test_step(self, data):
        self.probe_accuracy.update_state(data[1], self.linear_probe(self.encoder(data[0])))
        return {"p_acc": self.probe_accuracy.result()}


model = NNCLR()
model.compile(keras.optimizers.Adam(0.005), keras.optimizers.Adam(0.01))
history = model.fit(  #> history = context.fit(model,
    train_dataset, epochs=5, validation_data=test_dataset, verbose=0,
)
