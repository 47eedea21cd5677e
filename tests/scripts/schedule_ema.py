"""Train with a cosine schedule, averaged weights and early stopping that keeps the best."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import make_moons

keras.utils.set_random_seed(97)

x, y = make_moons(800, noise=0.25, random_state=1)
x_train, x_val, y_train, y_val = x[:600], x[600:], y[:600], y[600:]
BATCH_SIZE, EPOCHS = 32, 8
steps_per_epoch = int(np.ceil(len(x_train) / BATCH_SIZE))

schedule = keras.optimizers.schedules.CosineDecay(
    initial_learning_rate=1e-3,
    decay_steps=steps_per_epoch * EPOCHS,
    warmup_target=0.1,
    warmup_steps=steps_per_epoch,
)
optimizer = keras.optimizers.Adam(
    learning_rate=schedule, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=25, global_clipnorm=1.0
)

model = keras.Sequential(
    [
        keras.Input((2,)),
        layers.Dense(32, activation="relu", kernel_initializer="he_normal"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(32, activation="relu", kernel_initializer="he_normal"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")]
)

early_stopping = keras.callbacks.EarlyStopping(
    monitor="val_auc", mode="max", patience=2, restore_best_weights=True, start_from_epoch=1
)
history = model.fit(
    x_train,
    y_train,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    validation_data=(x_val, y_val),
    class_weight={0: 1.0, 1: 1.5},
    callbacks=[early_stopping, keras.callbacks.CSVLogger("log.csv"), keras.callbacks.TerminateOnNaN()],
)
print("Stopped after epoch", early_stopping.stopped_epoch, "best", early_stopping.best_epoch)
print("Best AUC:", early_stopping.best, "now", model.evaluate(x_val, y_val, verbose=0))
