# The form of keras-team/keras-io, examples/vision/cutmix.py: two shuffled datasets, mixed in map with random ops
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(57)  #> context = det.keras.init(seed=57)
x, y = load_digits(return_X_y=True)
x = (x[:360] / 16).reshape(-1, 8, 8, 1).astype("float32")
y = keras.utils.to_categorical(y[:360], 10).astype("float32")


def shuffled():
    return tf.data.Dataset.from_tensor_slices((x[:300], y[:300])).shuffle(1024)


def get_box(lambda_value):
    size = tf.cast(8 * tf.sqrt(1.0 - lambda_value), tf.int32)
    top = tf.random.uniform([], 0, 8, dtype=tf.int32)
    left = tf.random.uniform([], 0, 8, dtype=tf.int32)
    rows = tf.logical_and(tf.range(8) >= top - size // 2, tf.range(8) < top + size // 2)
    columns = tf.logical_and(tf.range(8) >= left - size // 2, tf.range(8) < left + size // 2)
    return tf.cast(tf.logical_and(rows[:, None], columns[None, :]), tf.float32)[..., None]


def cutmix(train_ds_one, train_ds_two):
    (image1, label1), (image2, label2) = train_ds_one, train_ds_two
    gammas = tf.random.gamma([2], 0.25)
    box = get_box(gammas[0] / (gammas[0] + gammas[1] + 1e-7))
    share = tf.reduce_mean(box)
    return image1 * (1 - box) + image2 * box, label1 * (1 - share) + label2 * share


train_ds = tf.data.Dataset.zip((shuffled(), shuffled())).shuffle(1024)
train_ds = train_ds.map(cutmix, num_parallel_calls=tf.data.AUTOTUNE).batch(30).prefetch(tf.data.AUTOTUNE)
test_ds = tf.data.Dataset.from_tensor_slices((x[300:], y[300:])).batch(30)
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(6, 3, activation="relu")])
model.add(keras.layers.Flatten())
model.add(keras.layers.Dense(10, "softmax"))
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    train_ds, validation_data=test_ds, epochs=5, verbose=0,
)
