"""Rank customer tickets by priority and route them: several inputs, several outputs, data in dicts."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(41)

NUM_TAGS, NUM_WORDS, NUM_DEPARTMENTS = 6, 100, 4

rng = np.random.default_rng(10)
size = 800
title_data = rng.integers(NUM_WORDS, size=(size, 6))
body_data = rng.integers(NUM_WORDS, size=(size, 15))
tags_data = rng.integers(2, size=(size, NUM_TAGS)).astype("float32")
priority_targets = (tags_data.sum(axis=1) + (title_data < 20).sum(axis=1) > 4).astype("float32")[:, None]
department_targets = keras.utils.to_categorical(body_data.max(axis=1) % NUM_DEPARTMENTS, NUM_DEPARTMENTS)

title_input = keras.Input((None,), name="title")
body_input = keras.Input((None,), name="body")
tags_input = keras.Input((NUM_TAGS,), name="tags")

title_features = layers.GRU(8)(layers.Embedding(NUM_WORDS, 8)(title_input))
body_features = layers.GlobalAveragePooling1D()(layers.Embedding(NUM_WORDS, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
x = layers.Dropout(0.2)(x)
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(NUM_DEPARTMENTS, name="department")(x)

model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    metrics={"department": ["accuracy"], "priority": [keras.metrics.AUC(from_logits=True, name="auc")]},
    loss_weights={"priority": 1.0, "department": 0.2},
)
history = model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": department_targets},
    epochs=3,
    batch_size=32,
    validation_split=0.2,
)

urgent = model.predict({"title": title_data[:5], "body": body_data[:5], "tags": tags_data[:5]})
print("Priorities:", urgent["priority"].ravel())
print("Losses:", {name: values[-1] for name, values in history.history.items() if "loss" in name})
