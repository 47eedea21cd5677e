# The form of keras-team/keras-io, guides/functional_api.py: dicts of inputs, targets and sample weights
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(60)  #> context = det.keras.init(seed=60)
num_words, num_tags, num_departments = 50, 6, 4
title_data = np.random.randint(num_words, size=(240, 6))
body_data = np.random.randint(num_words, size=(240, 10))
tags_data = np.random.randint(2, size=(240, num_tags)).astype("float32")
priority_targets = np.random.random(size=(240, 1))
dept_targets = (title_data.sum(axis=1) // 40) % num_departments
sample_weight = {"priority": np.random.random(240), "department": 1 + (dept_targets == 2)}

title_input = keras.Input((None,), name="title")
body_input = keras.Input((None,), name="body")
tags_input = keras.Input((num_tags,), name="tags")
title_features = keras.layers.LSTM(8)(keras.layers.Embedding(num_words, 8)(title_input))
body_features = keras.layers.LSTM(6, recurrent_dropout=0.1)(keras.layers.Embedding(num_words, 8)(body_input))
features = keras.layers.concatenate([title_features, body_features, tags_input])
priority_pred = keras.layers.Dense(1, name="priority")(features)
department_pred = keras.layers.Dense(num_departments, name="department")(features)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    weighted_metrics={"department": ["accuracy"]},
)
history = model.fit(  #> history = context.fit(model,
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets}, sample_weight=sample_weight, epochs=4,
    batch_size=24, verbose=0,
    #>+ validate=False,
)
