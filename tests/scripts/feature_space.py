"""Predict who is ill from a table, with `FeatureSpace` and pandas."""

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras.utils import FeatureSpace

keras.utils.set_random_seed(101)

rng = np.random.default_rng(2)
rows = 600
frame = pd.DataFrame(
    {
        "age": rng.integers(25, 80, rows),
        "sex": rng.integers(0, 2, rows),
        "pressure": rng.normal(130, 15, rows),
        "cholesterol": rng.normal(240, 50, rows),
        "thal": rng.choice(["normal", "fixed", "reversible"], rows),
    }
)
risk = (frame["age"] - 50) / 10 + (frame["cholesterol"] - 240) / 50 + 2 * (frame["thal"] == "reversible")
frame["target"] = (risk + rng.normal(0, 0.5, rows) > 0.5).astype("int64")

val_frame = frame.sample(frac=0.2, random_state=1337)
train_frame = frame.drop(val_frame.index)


def dataframe_to_dataset(dataframe):
    dataframe = dataframe.copy()
    labels = dataframe.pop("target")
    ds = tf.data.Dataset.from_tensor_slices((dict(dataframe), labels))
    return ds.shuffle(buffer_size=len(dataframe))


train_ds = dataframe_to_dataset(train_frame).batch(16)
val_ds = dataframe_to_dataset(val_frame).batch(16)

feature_space = FeatureSpace(
    features={
        "sex": FeatureSpace.integer_categorical(num_oov_indices=0),
        "thal": FeatureSpace.string_categorical(num_oov_indices=0),
        "age": FeatureSpace.float_discretized(num_bins=10),
        "pressure": FeatureSpace.float_normalized(),
        "cholesterol": FeatureSpace.float_normalized(),
    },
    crosses=[FeatureSpace.cross(feature_names=("sex", "age"), crossing_dim=16)],
    output_mode="concat",
)
feature_space.adapt(train_ds.map(lambda x, _: x))

preprocessed_train = train_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
preprocessed_train = preprocessed_train.prefetch(tf.data.AUTOTUNE)
preprocessed_val = val_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
preprocessed_val = preprocessed_val.prefetch(tf.data.AUTOTUNE)

encoded_features = feature_space.get_encoded_features()
x = keras.layers.Dense(32, activation="relu")(encoded_features)
x = keras.layers.Dropout(0.5)(x)
predictions = keras.layers.Dense(1, activation="sigmoid")(x)
training_model = keras.Model(inputs=encoded_features, outputs=predictions)
training_model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])

history = training_model.fit(preprocessed_train, epochs=3, validation_data=preprocessed_val)

inference_model = keras.Model(inputs=feature_space.get_inputs(), outputs=training_model(encoded_features))
sample = {"age": 60, "sex": 1, "pressure": 145.0, "cholesterol": 233.0, "thal": "fixed"}
probability = inference_model.predict({name: tf.convert_to_tensor([value]) for name, value in sample.items()})
print(f"This patient is ill with a probability of {100 * probability[0][0]:.1f}%.")
