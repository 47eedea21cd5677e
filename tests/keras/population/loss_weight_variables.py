# The form of keras-team/keras issue #2595 and pull request #20306: loss weights are variables that a callback shifts
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(44)  #> context = det.keras.init(seed=44)
x = np.random.rand(240, 6)
y1 = x.sum(axis=1, keepdims=True)
y2 = (x[:, :1] > x[:, 1:2]).astype("float32")
alpha, beta = keras.Variable(0.9, trainable=False), keras.Variable(0.1, trainable=False)


class MyCallback(keras.callbacks.Callback):
    def __init__(self, alpha, beta):
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 1:
            self.alpha.assign(self.alpha / 1.5)
            self.beta.assign(self.beta * 1.5)
        logs["alpha"] = float(self.alpha)


inputs = keras.Input((6,), name="input_a")
hidden = keras.layers.Dense(16, activation="relu")(inputs)
output_a = keras.layers.Dense(1, name="output_a")(hidden)
output_b = keras.layers.Dense(1, name="output_b", activation="sigmoid")(hidden)
model = keras.Model(inputs, [output_a, output_b])
model.compile("rmsprop", ["mean_squared_error", "binary_crossentropy"], loss_weights=[alpha, beta])
history = model.fit(  #> history = context.fit(model,
    x, (y1, y2), batch_size=20, epochs=5, verbose=0, callbacks=[MyCallback(alpha, beta)],
    #>+ validate=False,
)
RESULT = [float(alpha), float(beta)]
