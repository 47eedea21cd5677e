"""Classify flowers straight from CSV files, with lookups and normalization inside a wide and deep model."""

import csv
import pathlib

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_iris

keras.utils.set_random_seed(8)

NUMERIC = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
COLORS = ["blue", "violet", "white"]

iris = load_iris()
rng = np.random.default_rng(1)
order = rng.permutation(len(iris.data))
for path, part in {"train.csv": order[:120], "test.csv": order[120:]}.items():
    with pathlib.Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NUMERIC, "color", "species"])
        for row in part:
            writer.writerow([*iris.data[row], rng.choice(COLORS), iris.target[row]])


def get_dataset_from_csv(path, shuffle=False):
    dataset = tf.data.experimental.make_csv_dataset(
        path,
        batch_size=8,
        column_defaults=[0.0] * 4 + ["", 0],
        label_name="species",
        num_epochs=1,
        header=True,
        shuffle=shuffle,
    )
    return dataset.map(lambda features, species: (dict(features), species))


def create_model_inputs():
    inputs = {name: keras.Input((1,), name=name) for name in NUMERIC}
    inputs["color"] = keras.Input((1,), name="color", dtype="string")
    return inputs


def encode_inputs(inputs):
    lookup = layers.StringLookup(vocabulary=COLORS, num_oov_indices=1)
    embedding = layers.Flatten()(layers.Embedding(len(COLORS) + 1, 2)(lookup(inputs["color"])))
    return layers.concatenate([*(inputs[name] for name in NUMERIC), embedding])


inputs = create_model_inputs()
features = encode_inputs(inputs)
wide = layers.BatchNormalization()(features)
deep = features
for units in (16, 16):
    deep = layers.Dense(units)(deep)
    deep = layers.BatchNormalization()(deep)
    deep = layers.ReLU()(deep)
    deep = layers.Dropout(0.1)(deep)
outputs = layers.Dense(3, activation="softmax")(layers.concatenate([wide, deep]))
model = keras.Model(inputs=inputs, outputs=outputs)

model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
train_dataset = get_dataset_from_csv("train.csv", shuffle=True)
test_dataset = get_dataset_from_csv("test.csv")
history = model.fit(train_dataset, epochs=5, validation_data=test_dataset)
_, accuracy = model.evaluate(test_dataset, verbose=0)
print(f"Test accuracy: {round(accuracy * 100, 2)}%")
