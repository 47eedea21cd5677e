# The form of keras-team/keras-contrib, keras_contrib/callbacks/warm_restart.py: a cosine with longer and longer cycles
import keras
import numpy as np
from sklearn.datasets import load_iris

#>+ import det_keras as det

keras.utils.set_random_seed(5)  #> context = det.keras.init(seed=5)
x, y = load_iris(return_X_y=True)
order = np.random.permutation(len(x))
x, y = ((x - x.mean(0)) / x.std(0)).astype("float32")[order], y[order]


class SGDR(keras.callbacks.Callback):
    def __init__(self, min_lr=1e-4, max_lr=0.05, base_epochs=1, mul_epochs=2):
        super().__init__()
        self.min_lr, self.max_lr = min_lr, max_lr
        self.base_epochs, self.mul_epochs = base_epochs, mul_epochs
        self.cycles = 0.0
        self.cycle_iterations = 0.0
        self.trn_iterations = 0.0
        self.restarts = []

    def sgdr(self):
        length = self.base_epochs * self.mul_epochs**self.cycles * self.params["steps"]
        share = min(1.0, self.cycle_iterations / length)
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1 + np.cos(np.pi * share))

    def on_train_begin(self, logs=None):
        rate = self.max_lr if self.cycle_iterations == 0 else self.sgdr()
        self.model.optimizer.learning_rate.assign(rate)

    def on_train_batch_end(self, batch, logs=None):
        self.trn_iterations += 1
        self.cycle_iterations += 1
        self.model.optimizer.learning_rate.assign(self.sgdr())

    def on_epoch_end(self, epoch, logs=None):
        logs["lr"] = float(self.model.optimizer.learning_rate)
        if self.cycle_iterations >= self.base_epochs * self.mul_epochs**self.cycles * self.params["steps"]:
            self.cycles += 1
            self.cycle_iterations = 0
            self.restarts.append(epoch)
            self.model.optimizer.learning_rate.assign(self.max_lr)


model = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3, "softmax")]
)
model.compile(keras.optimizers.SGD(momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
schedule = SGDR()
history = model.fit(  #> history = context.fit(model,
    x[:120], y[:120], batch_size=15, epochs=7, verbose=0, callbacks=[schedule],
    validation_data=(x[120:], y[120:]),
)
RESULT = [schedule.restarts, history.history["lr"]]
