# The form of OpenNMT/OpenNMT-tf pull request #90: the label smoothing of a loss object falls during training
import keras
from keras import ops
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(40)  #> context = det.keras.init(seed=40)
x, y = load_digits(return_X_y=True)
x, y = (x[:400] / 16).astype("float32"), keras.utils.to_categorical(y[:400], 10)


class SmoothedCrossentropy(keras.losses.Loss):
    def __init__(self, smoothing, **kwargs):
        super().__init__(**kwargs)
        self.smoothing = keras.Variable(smoothing, trainable=False, name="smoothing")

    def call(self, y_true, y_pred):
        y_true = y_true * (1.0 - self.smoothing) + self.smoothing / 10
        return ops.mean(-ops.sum(y_true * ops.log(y_pred + 1e-7), axis=-1))


loss = SmoothedCrossentropy(0.3)
smoothings = []


def lower(batch, logs):
    loss.smoothing.assign(loss.smoothing * 0.95)
    smoothings.append(float(loss.smoothing))


model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(10, "softmax")]
)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=32, epochs=4, verbose=0, validation_split=0.2,
    callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=lower)],
)
RESULT = smoothings
