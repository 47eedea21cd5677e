# The form of titu1994/keras-one-cycle, clr.py: rate and momentum are set each batch, momentum as a plain attribute
import keras
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(6)  #> context = det.keras.init(seed=6)
x, y = load_digits(return_X_y=True)
x = (x[:400] / 16).astype("float32")
y = y[:400]


class OneCycleLR(keras.callbacks.Callback):
    def __init__(self, max_lr, end_percentage=0.1, maximum_momentum=0.95, minimum_momentum=0.85):
        super().__init__()
        self.initial_lr, self.end_percentage = max_lr, end_percentage
        self.max_momentum, self.min_momentum = maximum_momentum, minimum_momentum
        self.clr_iterations = 0.0
        self.history = {}

    def share(self):
        middle = self.num_iterations * (1 - self.end_percentage) / 2
        return max(0.0, 1 - abs(self.clr_iterations - middle) / middle)

    def apply(self):
        lr = self.initial_lr * (0.1 + 0.9 * self.share())
        momentum = self.max_momentum - (self.max_momentum - self.min_momentum) * self.share()
        self.model.optimizer.learning_rate = lr
        self.model.optimizer.momentum = momentum
        self.history.setdefault("lr", []).append(lr)
        self.history.setdefault("momentum", []).append(momentum)

    def on_train_begin(self, logs=None):
        self.num_iterations = self.params["epochs"] * self.params["steps"]
        self.clr_iterations = 1
        self.apply()

    def on_train_batch_end(self, batch, logs=None):
        self.clr_iterations += 1
        self.apply()


model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
cycle = OneCycleLR(0.2)
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=32, epochs=4, verbose=0, callbacks=[cycle], validation_split=0.1,
)
RESULT = [cycle.history, float(model.optimizer.momentum)]
