# The form of CuriousAI/mean-teacher, tensorflow/mean_teacher/model.py: a teacher inside the model, a ramped-up cost
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(10)  #> context = det.keras.init(seed=10)
x, y = load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype("float32"), y[:400]
y = np.where(np.random.rand(len(y)) < 0.5, y, -1)


def network():
    layers = [keras.Input((64,)), keras.layers.GaussianNoise(0.1), keras.layers.Dense(24, "relu")]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


class MeanTeacher(keras.Model):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = network(), network()
        self.teacher.set_weights(self.student.get_weights())
        self.ramp = keras.Variable(0.0, trainable=False)
        self.global_step = 0

    def train_step(self, data):
        x, y = data
        known = tf.cast(y >= 0, "float32")
        with tf.GradientTape() as tape:
            logits = self.student(x, training=True)
            cost = keras.losses.sparse_categorical_crossentropy(tf.maximum(y, 0), logits, from_logits=True)
            gap = tf.nn.softmax(logits) - tf.stop_gradient(tf.nn.softmax(self.teacher(x, training=True)))
            loss = tf.reduce_mean(known * cost) + self.ramp * tf.reduce_mean(gap**2)
        variables = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        for mine, other in zip(self.teacher.variables, self.student.variables):
            if "float" in mine.dtype:
                mine.assign(0.9 * mine + 0.1 * other)
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        hits = tf.argmax(self.teacher(x), axis=1) == tf.cast(y, tf.int64)
        return {"hits": tf.reduce_mean(tf.cast(hits, "float32"))}


class RampUp(keras.callbacks.Callback):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def on_train_batch_begin(self, batch, logs=None):
        share = min(1.0, self.model.global_step / self.length)
        self.model.ramp.assign(8.0 * np.exp(-5.0 * (1 - share) ** 2))
        self.model.global_step += 1


model = MeanTeacher()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=40, epochs=5, verbose=0, callbacks=[RampUp(30)], validation_data=(x[:100], y[:100]),
)
RESULT = [model.global_step, float(model.ramp)]
