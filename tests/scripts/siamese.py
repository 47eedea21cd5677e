"""Tell whether two digits are the same with a siamese network and a contrastive loss."""

import random

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(19)

digits = load_digits()
x = digits.images[..., None].astype("float32") / 16.0
x_train, y_train, x_val, y_val = x[:450], digits.target[:450], x[450:600], digits.target[450:600]


def make_pairs(x, y):
    of_class = [np.where(y == label)[0] for label in range(10)]
    pairs, labels = [], []
    for i in range(len(x)):
        same = random.choice(of_class[y[i]])
        other = random.choice(of_class[random.choice([label for label in range(10) if label != y[i]])])
        pairs += [[x[i], x[same]], [x[i], x[other]]]
        labels += [0, 1]
    return np.array(pairs), np.array(labels).astype("float32")


pairs_train, labels_train = make_pairs(x_train, y_train)
pairs_val, labels_val = make_pairs(x_val, y_val)


def euclidean_distance(vectors):
    first, second = vectors
    squared = ops.sum(ops.square(first - second), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(squared, keras.backend.epsilon()))


inputs = keras.Input((8, 8, 1))
hidden = layers.BatchNormalization()(inputs)
hidden = layers.Conv2D(8, 3, activation="tanh")(hidden)
hidden = layers.AveragePooling2D(2)(hidden)
hidden = layers.Flatten()(hidden)
hidden = layers.BatchNormalization()(hidden)
embedding_network = keras.Model(inputs, layers.Dense(10, activation="tanh")(hidden))

input_1, input_2 = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
towers = embedding_network(input_1), embedding_network(input_2)
merged = layers.Lambda(euclidean_distance, output_shape=(1,))(towers)
outputs = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(merged))
siamese = keras.Model(inputs=[input_1, input_2], outputs=outputs)


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        margin_square = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * margin_square)

    return contrastive_loss


siamese.compile(loss=loss(margin=1), optimizer="RMSprop", metrics=["accuracy"])
history = siamese.fit(
    [pairs_train[:, 0], pairs_train[:, 1]],
    labels_train,
    validation_data=([pairs_val[:, 0], pairs_val[:, 1]], labels_val),
    batch_size=18,
    epochs=2,
)
print("Accuracy on other pairs:", history.history["val_accuracy"][-1])
