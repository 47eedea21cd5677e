"""Fine-tune a pretrained network on an augmented image folder, in two phases."""

import pathlib
import shutil

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(5)

digits = load_digits()
images, labels = digits.images[..., None] / 16.0, digits.target

# The pretrained part: a network that knows the digits 0 to 4.
base = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.Conv2D(16, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
classifier = keras.Sequential([base, layers.Dense(5, activation="softmax")])
classifier.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
known = labels < 5
classifier.fit(images[known], labels[known], validation_split=0.1, shuffle=False)

# The new task: 5 to 9, as a folder of PNG files.
root = pathlib.Path("digits")
shutil.rmtree(root, ignore_errors=True)
for number, (image, label) in enumerate(zip(images[~known][:320], labels[~known])):
    folder = root / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    pixels = tf.cast(255 * image, tf.uint8)
    (folder / f"{number:04}.png").write_bytes(tf.io.encode_png(pixels).numpy())

train, validation = keras.utils.image_dataset_from_directory(
    root,
    image_size=(8, 8),
    color_mode="grayscale",
    batch_size=16,
    validation_split=0.2,
    subset="both",
    seed=1,
)

augmentation = [layers.RandomTranslation(0.1, 0.1), layers.RandomRotation(0.05), layers.RandomContrast(0.2)]


def augment(x):
    for layer in augmentation:
        x = layer(x)
    return x


train = train.map(lambda x, y: (augment(x), y), num_parallel_calls=tf.data.AUTOTUNE).prefetch(
    tf.data.AUTOTUNE
)

base.trainable = False
inputs = keras.Input((8, 8, 1))
x = layers.Rescaling(1.0 / 255)(inputs)
x = base(x, training=False)
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(5)(x))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=["sparse_categorical_accuracy"])
frozen = model.fit(train, epochs=2, validation_data=validation)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss=loss, metrics=["sparse_categorical_accuracy"])
tuned = model.fit(train, epochs=2, validation_data=validation)
print(
    "Accuracy",
    frozen.history["val_sparse_categorical_accuracy"],
    tuned.history["val_sparse_categorical_accuracy"],
)
