"""Classify handwritten digits with a training loop written by hand."""

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(51)

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images[:768], labels[:768])).shuffle(768).batch(64)
x_val, y_val = images[768:], labels[768:]

model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(32, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(10),
    ]
)
optimizer = keras.optimizers.Adam(1e-2)
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()
val_accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_function(y, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    accuracy.update_state(y, logits)
    return loss


for epoch in range(4):
    accuracy.reset_state()
    for x, y in dataset:
        loss = train_step(x, y)
    val_accuracy.reset_state()
    val_accuracy.update_state(y_val, model(x_val))
    print(f"epoch {epoch + 1}: {float(accuracy.result()):.3f}, {float(val_accuracy.result()):.3f}")
