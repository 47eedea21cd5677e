# The form of handongfeng/MNIST-center-loss, centerLoss_MNIST.py: a layer moves its centres in the forward pass
import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(54)  #> context = det.keras.init(seed=54)
x, y = load_digits(return_X_y=True)
x, y_value = (x[:400] / 16).astype("float32"), y[:400]
y = keras.utils.to_categorical(y_value, 10)


class CenterLossLayer(keras.layers.Layer):
    def __init__(self, alpha=0.5, **kwargs):
        super().__init__(**kwargs)
        self.alpha = alpha

    def build(self, input_shape):
        self.centers = self.add_weight(name="centers", shape=(10, 2), initializer="uniform", trainable=False)

    def call(self, inputs, training=False):
        features, labels = inputs
        delta = ops.matmul(ops.transpose(labels), ops.matmul(labels, self.centers) - features)
        counts = ops.sum(ops.transpose(labels), axis=1, keepdims=True) + 1
        if training:
            self.centers.assign(self.centers - self.alpha * delta / counts)
        return ops.sum((features - ops.matmul(labels, self.centers)) ** 2, axis=1, keepdims=True)


class FeatureMeans(keras.callbacks.Callback):
    def __init__(self, network):
        super().__init__()
        self.network, self.means = network, []

    def on_epoch_end(self, epoch, logs=None):
        features = self.network.predict(x[320:], verbose=0)
        self.means.append(features.mean(axis=0))


main_input, aux_input = keras.Input((64,)), keras.Input((10,))
hidden = keras.layers.Dense(24)(main_input)
hidden = keras.layers.PReLU()(keras.layers.BatchNormalization()(hidden))
side = keras.layers.Dense(2, name="side_out")(hidden)
main = keras.layers.Dense(10, activation="softmax", name="main_out")(side)
centers = CenterLossLayer(name="centerlosslayer")
model = keras.Model([main_input, aux_input], [main, centers([side, aux_input])])
losses = ["categorical_crossentropy", lambda y_true, y_pred: 0.5 * ops.sum(y_pred, axis=0)]
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), losses, loss_weights=[1.0, 0.01])
dummy = np.zeros((400, 1))
means = FeatureMeans(keras.Model(main_input, side))
history = model.fit(  #> history = context.fit(model,
    [x[:320], y[:320]], [y[:320], dummy[:320]], batch_size=32, epochs=4, verbose=0, callbacks=[means],
    validation_data=([x[320:], y[320:]], [y[320:], dummy[320:]]),
)
RESULT = [centers.centers.numpy().tolist(), np.array(means.means).tolist()]
