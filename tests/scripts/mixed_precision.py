"""Train a small vision network in mixed precision."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(64)
keras.mixed_precision.set_dtype_policy("mixed_float16")

digits = load_digits()
x = np.expand_dims(digits.images, -1).astype("float32") / 16.0
y = keras.utils.to_categorical(digits.target, 10)
x_train, x_test, y_train, y_test = x[:1440], x[1440:], y[:1440], y[1440:]

inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
x = layers.BatchNormalization()(x)
x = layers.Activation("gelu")(x)
x = layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
x = layers.Dense(10)(x)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.005, clipnorm=1.0),
    loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(k=3, name="top_3")],
)
print("Compute dtype:", model.compute_dtype, "variable dtype:", model.variable_dtype)

reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1)
history = model.fit(
    x_train,
    y_train,
    batch_size=48,
    epochs=3,
    validation_data=(x_test, y_test),
    callbacks=[reduce_lr],
)

loss, accuracy, top_3 = model.evaluate(x_test, y_test)
print(f"Test accuracy {accuracy:.3f}, top 3 {top_3:.3f}")
print("Loss scale:", float(model.optimizer.dynamic_scale))
