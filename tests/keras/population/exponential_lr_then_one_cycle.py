# The form of ageron/handson-ml2, 11_training_deep_neural_networks.ipynb: find a rate, then train one cycle
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(53)  #> context = det.keras.init(seed=53)
x, y = load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype("float32"), y[:400]


class ExponentialLearningRate(keras.callbacks.Callback):
    def __init__(self, factor):
        self.factor, self.rates, self.losses = factor, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.prev_loss = 0

    def on_batch_end(self, batch, logs=None):
        batch_loss = logs["loss"] * (batch + 1) - self.prev_loss * batch
        self.prev_loss = logs["loss"]
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.losses.append(batch_loss)
        self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * self.factor)


def find_learning_rate(model, x, y, epochs=1, batch_size=16, min_rate=1e-3, max_rate=2):
    init_weights = model.get_weights()
    factor = (max_rate / min_rate) ** (1 / (len(x) / batch_size * epochs))
    init_lr = float(model.optimizer.learning_rate)
    model.optimizer.learning_rate.assign(min_rate)
    exp_lr = ExponentialLearningRate(factor)
    model.fit(  #> context.fit(model,
        x, y, epochs=epochs, batch_size=batch_size, callbacks=[exp_lr], verbose=0,
        #>+ validate=False,
    )
    model.optimizer.learning_rate.assign(init_lr)
    model.set_weights(init_weights)
    return exp_lr.rates, exp_lr.losses


class OneCycleScheduler(keras.callbacks.Callback):
    def __init__(self, iterations, max_rate):
        self.iterations, self.max_rate, self.iteration = iterations, max_rate, 0

    def on_batch_begin(self, batch, logs=None):
        share = 1 - abs(2 * self.iteration / self.iterations - 1)
        self.iteration += 1
        self.model.optimizer.learning_rate.assign(self.max_rate * (0.1 + 0.9 * share))


model = keras.Sequential([keras.Input((64,)), keras.layers.AlphaDropout(0.1), keras.layers.Dense(24, "selu")])
model.add(keras.layers.AlphaDropout(0.1))
model.add(keras.layers.Dense(10, "softmax"))
model.compile(keras.optimizers.SGD(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
rates, losses = find_learning_rate(model, x[:320], y[:320])
onecycle = OneCycleScheduler(20 * 3, max_rate=rates[int(np.argmin(losses))] / 2)
history = model.fit(  #> history = context.fit(model,
    x[:320], y[:320], epochs=3, batch_size=16, verbose=0, validation_data=(x[320:], y[320:]),
    callbacks=[onecycle],
)
y_probas = np.stack([np.asarray(model(x[320:330], training=True)) for _ in range(5)])
RESULT = [losses, y_probas.mean(axis=0).tolist()]
