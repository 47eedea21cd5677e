"""Estimate a regressor's error by k-fold cross validation."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold

keras.utils.set_random_seed(47)

data, targets = load_diabetes(return_X_y=True)
data, targets = data.astype("float32"), (targets / 100).astype("float32")


def build_model(mean, variance):
    model = keras.Sequential(
        [
            keras.Input((data.shape[1],)),
            layers.Normalization(mean=mean, variance=variance),
            layers.Dense(16, activation="relu", kernel_regularizer="l2"),
            layers.Dropout(0.1),
            layers.Dense(16, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile(optimizer="rmsprop", loss="mse", metrics=["mae"])
    return model


all_scores, all_mae_histories = [], []
predictions = np.zeros(len(data), dtype="float32")
folds = KFold(n_splits=4, shuffle=True, random_state=0)
for fold, (train_index, val_index) in enumerate(folds.split(data)):
    print(f"Processing fold #{fold}")
    keras.utils.clear_session()
    model = build_model(data[train_index].mean(axis=0), data[train_index].var(axis=0))
    history = model.fit(
        data[train_index],
        targets[train_index],
        validation_data=(data[val_index], targets[val_index]),
        epochs=2,
        batch_size=32,
        verbose=0,
    )
    all_mae_histories.append(history.history["val_mae"])
    _, val_mae = model.evaluate(data[val_index], targets[val_index], verbose=0)
    all_scores.append(val_mae)
    predictions[val_index] = model.predict(data[val_index], verbose=0)[:, 0]

average_mae_history = np.mean(all_mae_histories, axis=0)
print("Scores:", np.round(all_scores, 3), "mean", np.mean(all_scores))
print("By epoch:", average_mae_history)
print("Correlation:", np.corrcoef(predictions, targets)[0, 1])
