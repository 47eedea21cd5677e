# The form of CyberZHG/keras-lookahead, keras_lookahead/optimizers.py: an optimizer around another, with slow weights
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(14)  #> context = det.keras.init(seed=14)
x, y = load_digits(return_X_y=True)
x, y = (x[:480] / 16).astype("float32"), y[:480]


class Lookahead(keras.optimizers.Optimizer):
    def __init__(self, optimizer, sync_period=5, slow_step=0.5, **kwargs):
        super().__init__(learning_rate=1.0, **kwargs)
        self.optimizer = keras.optimizers.get(optimizer)
        self.sync_period, self.slow_step = sync_period, slow_step

    def build(self, variables):
        super().build(variables)
        self.optimizer.build(variables)
        self.slow = [tf.Variable(v.numpy(), trainable=False) for v in variables]

    def apply(self, grads, trainable_variables=None):
        variables = trainable_variables or self._trainable_variables
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        self.optimizer.apply(grads, variables)
        self._iterations.assign_add(1)
        sync = tf.equal(self._iterations.value % self.sync_period, 0)
        for slow, fast in zip(self.slow, variables):
            slow.assign(tf.where(sync, slow + self.slow_step * (fast.value - slow), slow))
            fast.assign(tf.where(sync, slow, fast.value))
        return self._iterations


model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(10, "softmax")]
)
optimizer = Lookahead("adam", sync_period=4)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    x[:400], y[:400], batch_size=32, epochs=4, verbose=0, validation_data=(x[400:], y[400:]),
)
slow = [variable.numpy() for variable in optimizer.slow]
