# The form of simon-larsson/keras-swa, swa/keras.py: averages weights in a Python list, then trains batch normalization
import keras
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(15)  #> context = det.keras.init(seed=15)
x, y = load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype("float32"), y[:400]


class SWA(keras.callbacks.Callback):
    def __init__(self, start_epoch, swa_lr=0.02, swa_freq=1):
        super().__init__()
        self.start_epoch, self.swa_lr, self.swa_freq = start_epoch, swa_lr, swa_freq
        self.cnt = 0

    def on_train_begin(self, logs=None):
        self.init_lr = float(self.model.optimizer.learning_rate)
        self.epochs = self.params["epochs"]
        self.batch_norm = [
            one for one in self.model.layers if isinstance(one, keras.layers.BatchNormalization)
        ]

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch
        share = min(1.0, epoch / self.start_epoch)
        self.model.optimizer.learning_rate = self.init_lr + share * (self.swa_lr - self.init_lr)
        self.is_batch_norm_epoch = epoch == self.epochs - 1
        if epoch == self.start_epoch:
            self.swa_weights = self.model.get_weights()
            self.cnt = 1
        if self.is_batch_norm_epoch:
            self.model.set_weights(self.swa_weights)
            self.moments = [layer.momentum for layer in self.batch_norm]
            self.model.optimizer.learning_rate = 0.0

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self.start_epoch and not self.is_batch_norm_epoch and epoch % self.swa_freq == 0:
            new = self.model.get_weights()
            self.swa_weights = [(w * self.cnt + n) / (self.cnt + 1) for w, n in zip(self.swa_weights, new)]
            self.cnt += 1


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(24), keras.layers.BatchNormalization()])
model.add(keras.layers.Activation("relu"))
model.add(keras.layers.Dense(10, "softmax"))
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
swa = SWA(start_epoch=2)
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=40, epochs=6, verbose=0, callbacks=[swa], validation_split=0.2,
)
