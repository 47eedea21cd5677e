# The form of keras-team/keras issue #8793: a regularizer function reads a variable that a LambdaCallback raises
import keras
import numpy as np
from keras import ops

#>+ import det_keras as det

keras.utils.set_random_seed(41)  #> context = det.keras.init(seed=41)
x = np.random.normal(size=(300, 20)).astype("float32")
y = (x[:, :3].sum(axis=1, keepdims=True) + 0.1 * np.random.normal(size=(300, 1))).astype("float32")
l1_rate = keras.Variable(0.01, trainable=False)


def dynamic_l1(w):
    return l1_rate * ops.sum(ops.abs(w))


model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(12, "relu", kernel_regularizer=dynamic_l1)])
model.add(keras.layers.Dense(1, kernel_regularizer=dynamic_l1))
model.compile(keras.optimizers.Adam(0.01), "mse")
callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: l1_rate.assign(0.01 * (epoch + 2)))
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=25, epochs=5, verbose=0, callbacks=[callback],
    #>+ validate=False,
)
RESULT = [float(l1_rate), float(np.abs(model.layers[0].kernel.numpy()).sum())]
