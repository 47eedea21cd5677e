"""Classify an image folder from scratch, with augmentation in the input pipeline."""

import pathlib
import shutil

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1337)

IMAGE_SIZE = (12, 12)
BATCH_SIZE = 16

digits = load_digits()
root = pathlib.Path("PetImages")
shutil.rmtree(root, ignore_errors=True)
for number, (image, label) in enumerate(zip(digits.images, digits.target)):
    if label in (3, 8):
        folder = root / {3: "Cat", 8: "Dog"}[int(label)]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = tf.cast(15 * image[..., None], tf.uint8)
        (folder / f"{number}.png").write_bytes(tf.io.encode_png(tf.repeat(pixels, 3, axis=-1)).numpy())

train_ds, val_ds = keras.utils.image_dataset_from_directory(
    root, validation_split=0.2, subset="both", seed=1337, image_size=IMAGE_SIZE, batch_size=BATCH_SIZE
)

data_augmentation_layers = [
    layers.RandomFlip("horizontal"),
    layers.RandomRotation(0.1),
    layers.RandomZoom(0.1),
]


def data_augmentation(images):
    for layer in data_augmentation_layers:
        images = layer(images)
    return images


train_ds = train_ds.map(
    lambda img, label: (data_augmentation(img), label),
    num_parallel_calls=tf.data.AUTOTUNE,
)
train_ds = train_ds.prefetch(tf.data.AUTOTUNE)
val_ds = val_ds.prefetch(tf.data.AUTOTUNE)


def make_model(input_shape, num_classes):
    inputs = keras.Input(shape=input_shape)
    x = layers.Rescaling(1.0 / 255)(inputs)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    residual = layers.Conv2D(16, 1, strides=2, padding="same")(x)
    x = layers.SeparableConv2D(16, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.add([x, residual])
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    return keras.Model(inputs, layers.Dense(1 if num_classes == 2 else num_classes, activation=None)(x))


model = make_model(input_shape=(*IMAGE_SIZE, 3), num_classes=2)
callbacks = [keras.callbacks.ModelCheckpoint("save_at_{epoch}.keras")]
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(name="acc")],
)
history = model.fit(train_ds, epochs=4, callbacks=callbacks, validation_data=val_ds)

saved = keras.models.load_model("save_at_4.keras")
image = next(iter(val_ds))[0][:1]
score = float(keras.ops.sigmoid(saved(image))[0][0])
print(f"This image is {100 * (1 - score):.2f}% cat and {100 * score:.2f}% dog.")
