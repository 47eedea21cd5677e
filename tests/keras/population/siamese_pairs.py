# The form of keras-team/keras, examples/mnist_siamese.py: random pairs and a contrastive loss on a shared network
import random

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(36)  #> context = det.keras.init(seed=36)
x, y = load_digits(return_X_y=True)
x, y = (x[:300] / 16).astype("float32"), y[:300]


def create_pairs(x, digit_indices):
    pairs, labels = [], []
    n = min(len(digit_indices[d]) for d in range(10)) - 1
    for d in range(10):
        for i in range(n):
            z1, z2 = digit_indices[d][i], digit_indices[d][i + 1]
            pairs.append([x[z1], x[z2]])
            dn = (d + random.randrange(1, 10)) % 10
            pairs.append([x[z1], x[digit_indices[dn][i]]])
            labels += [1.0, 0.0]
    return np.array(pairs), np.array(labels)


def contrastive_loss(y_true, y_pred):
    margin = 1
    square_pred, margin_square = ops.square(y_pred), ops.square(ops.maximum(margin - y_pred, 0))
    return ops.mean(y_true * square_pred + (1 - y_true) * margin_square)


def accuracy(y_true, y_pred):
    return ops.mean(ops.equal(y_true, ops.cast(y_pred < 0.5, y_true.dtype)))


tr_pairs, tr_y = create_pairs(x[:220], [np.where(y[:220] == i)[0] for i in range(10)])
te_pairs, te_y = create_pairs(x[220:], [np.where(y[220:] == i)[0] for i in range(10)])
base = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.1)])
base.add(keras.layers.Dense(16, "relu"))
input_a, input_b = keras.Input((64,)), keras.Input((64,))
gap = base(input_a) - base(input_b)
distance = keras.layers.Lambda(lambda z: ops.sqrt(ops.maximum(ops.sum(z**2, axis=1, keepdims=True), 1e-7)))(
    gap
)
model = keras.Model([input_a, input_b], distance)
model.compile(keras.optimizers.RMSprop(), contrastive_loss, metrics=[accuracy])
history = model.fit(  #> history = context.fit(model,
    [tr_pairs[:, 0], tr_pairs[:, 1]], tr_y[:, None], batch_size=24, epochs=4, verbose=0,
    validation_data=([te_pairs[:, 0], te_pairs[:, 1]], te_y[:, None]),
)
RESULT = model.predict([te_pairs[:, 0], te_pairs[:, 1]], verbose=0).ravel().tolist()
