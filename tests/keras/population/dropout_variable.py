# The form of keras-team/keras issue #3424: an own dropout layer with its rate in a variable, which falls each epoch
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(43)  #> context = det.keras.init(seed=43)
x = np.random.normal(size=(320, 12)).astype("float32")
y = (x[:, :2].prod(axis=1) > 0).astype("float32")


class AnnealedDropout(keras.layers.Layer):
    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.initial_rate = rate
        self.rate = tf.Variable(rate, trainable=False, dtype="float32")
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, inputs, training=False):
        if not training:
            return inputs
        kept = keras.random.uniform(tf.shape(inputs), seed=self.seed_generator) >= self.rate
        return tf.where(kept, inputs / (1.0 - self.rate), 0.0)


class Annealing(keras.callbacks.Callback):
    def __init__(self, N):
        super().__init__()
        self.N, self.cur_epoch = N, 0

    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if isinstance(layer, AnnealedDropout):
                layer.rate.assign(max(0.0, 1 - self.cur_epoch / self.N) * layer.initial_rate)
        self.cur_epoch += 1


dropouts = [AnnealedDropout(0.5), AnnealedDropout(0.3)]
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(24, "relu"), dropouts[0]])
model.add(keras.layers.Dense(24, "relu"))
model.add(dropouts[1])
model.add(keras.layers.Dense(1, "sigmoid"))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=32, epochs=6, verbose=0, callbacks=[Annealing(5)], validation_split=0.2,
)
RESULT = [float(layer.rate.numpy()) for layer in dropouts]
