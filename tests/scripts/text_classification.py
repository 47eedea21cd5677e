"""Tell good reviews from bad ones, read from a folder of text files."""

import pathlib
import shutil

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(3)

# A folder as one downloads it: reviews/train/pos/0.txt and so on.
rng = np.random.default_rng(0)
neutral = "the a film movie plot actor scene story camera music end of and with in".split()
flavour = {"pos": "great lovely fine brilliant moving".split(), "neg": "bad dull awful boring weak".split()}
root = pathlib.Path("reviews")
shutil.rmtree(root, ignore_errors=True)
for part, files in {"train": 160, "test": 40}.items():
    for label, words in flavour.items():
        folder = root / part / label
        folder.mkdir(parents=True)
        for number in range(files):
            review = [*rng.choice(neutral, 12), *rng.choice(words, 3)]
            rng.shuffle(review)
            (folder / f"{number}.txt").write_text(" ".join(review) + "<br />")

train = keras.utils.text_dataset_from_directory(
    root / "train", batch_size=16, validation_split=0.2, subset="training", seed=1337
)
val = keras.utils.text_dataset_from_directory(
    root / "train", batch_size=16, validation_split=0.2, subset="validation", seed=1337
)
test = keras.utils.text_dataset_from_directory(root / "test", batch_size=16)


def standardize(text):
    return tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")


vectorize = layers.TextVectorization(
    standardize=standardize, max_tokens=100, output_mode="int", output_sequence_length=20
)
vectorize.adapt(train.map(lambda text, label: text))


def to_numbers(text, label):
    return vectorize(tf.expand_dims(text, -1)), label


train = train.map(to_numbers).cache().prefetch(buffer_size=10)
val = val.map(to_numbers).cache().prefetch(buffer_size=10)
test = test.map(to_numbers).cache().prefetch(buffer_size=10)

inputs = keras.Input((None,), dtype="int64")
x = layers.Embedding(100, 16)(inputs)
x = layers.Dropout(0.5)(x)
x = layers.Conv1D(16, 5, padding="valid", activation="relu", strides=3)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(16, activation="relu")(x)
x = layers.Dropout(0.5)(x)
outputs = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, outputs)

model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(train, validation_data=val, epochs=5)

scores = model.evaluate(test)
print("Test loss and accuracy:", scores)
