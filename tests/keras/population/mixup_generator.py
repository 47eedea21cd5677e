# The form of yu4u/mixup-generator, mixup_generator.py: an endless generator that mixes samples by NumPy's global stream
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(11)  #> context = det.keras.init(seed=11)
x, y = load_digits(return_X_y=True)
x, y = (x[:480] / 16).astype("float32"), np.eye(10, dtype="float32")[y[:480]]


class MixupGenerator:
    def __init__(self, x, y, batch_size=32, alpha=0.2, shuffle=True):
        self.x, self.y, self.batch_size, self.alpha, self.shuffle = x, y, batch_size, alpha, shuffle
        self.sample_num = len(x)

    def __call__(self):
        while True:
            indexes = self.exploration_order()
            for i in range(self.sample_num // (self.batch_size * 2)):
                yield self.generation(indexes[i * self.batch_size * 2 : (i + 1) * self.batch_size * 2])

    def exploration_order(self):
        indexes = np.arange(self.sample_num)
        if self.shuffle:
            np.random.shuffle(indexes)
        return indexes

    def generation(self, ids):
        first, second = ids[: self.batch_size], ids[self.batch_size :]
        share = np.random.beta(self.alpha, self.alpha, self.batch_size)[:, None].astype("float32")
        x = self.x[first] * share + self.x[second] * (1 - share)
        return x, self.y[first] * share + self.y[second] * (1 - share)


training = MixupGenerator(x[:400], y[:400], batch_size=16)()
model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    training, steps_per_epoch=12, epochs=4, verbose=0, validation_data=(x[400:], y[400:]),
)
