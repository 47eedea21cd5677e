# The form of surmenok/keras_lr_finder, keras_lr_finder/lr_finder.py: raises the rate each batch, then restores weights
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(4)  #> context = det.keras.init(seed=4)
x = np.random.normal(size=(320, 10)).astype("float32")
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype("float32")


class LRFinder:
    def __init__(self, model):
        self.model = model
        self.losses, self.lrs = [], []
        self.best_loss = 1e9

    def on_batch_end(self, batch, logs):
        lr = float(self.model.optimizer.learning_rate)
        self.lrs.append(lr)
        self.losses.append(logs["loss"])
        if batch > 5 and (np.isnan(logs["loss"]) or logs["loss"] > self.best_loss * 4):
            self.model.stop_training = True
            return
        self.best_loss = min(self.best_loss, logs["loss"])
        self.model.optimizer.learning_rate = lr * self.lr_mult

    def find(self, x, y, start, end, batch_size=16, epochs=1):
        self.lr_mult = (end / start) ** (1 / (epochs * len(x) / batch_size))
        self.model.save_weights("tmp.weights.h5")
        original = float(self.model.optimizer.learning_rate)
        self.model.optimizer.learning_rate = start
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=self.on_batch_end)
        self.model.fit(  #> context.fit(self.model,
            x, y, batch_size=batch_size, epochs=epochs, callbacks=[callback], verbose=0,
            #>+ validate=False,
        )
        self.model.load_weights("tmp.weights.h5")
        self.model.optimizer.learning_rate = original

    def best_rate(self, skip=3):
        slopes = np.gradient(self.losses[skip:])
        return self.lrs[skip + int(np.argmin(slopes))]


model = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
finder = LRFinder(model)
finder.find(x, y, 1e-4, 1.0)
model.optimizer.learning_rate = finder.best_rate() / 2
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=16, epochs=3, verbose=0, validation_split=0.2,
)
RESULT = [finder.best_rate(), finder.losses, float(model.optimizer.learning_rate)]
