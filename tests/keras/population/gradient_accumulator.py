# The form of keras-team/keras issue #3556 and tensorflow/addons pull request #2525: an Adam that sums gradients first
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(46)  #> context = det.keras.init(seed=46)
x, y = load_digits(return_X_y=True)
x, y = (x[:360] / 16).astype("float32"), y[:360]


class AdamAccumulate(keras.optimizers.Adam):
    def __init__(self, learning_rate=0.01, accum_iters=4, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.accum_iters = accum_iters
        self.accum_step = tf.Variable(0, trainable=False)
        self.sums = []

    def build(self, variables):
        super().build(variables)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables]

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            with tf.init_scope():
                self.build(trainable_variables)
        for total, grad in zip(self.sums, grads):
            total.assign_add(grad / self.accum_iters)
        self.accum_step.assign_add(1)

        def step():
            super(AdamAccumulate, self).apply([total.value() for total in self.sums], trainable_variables)
            for total in self.sums:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(self.accum_step % self.accum_iters, 0), step, lambda: tf.constant(False))
        return self._iterations


model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(10, "softmax")]
)
optimizer = AdamAccumulate()
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=12, epochs=2, verbose=0, validation_split=0.1,
)
RESULT = [int(optimizer.accum_step.numpy()), [float(abs(total.numpy()).sum()) for total in optimizer.sums]]
