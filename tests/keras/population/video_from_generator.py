# The form of tensorflow/docs, site/en/tutorials/load_data/video.ipynb: from_generator over a list that Python shuffles
import random

import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(58)  #> context = det.keras.init(seed=58)
videos = {f"video-{n}": np.random.normal(size=(12, 4, 4)).cumsum(axis=0) + n % 3 for n in range(48)}


class FrameGenerator:
    def __init__(self, names, n_frames, training=False):
        self.names, self.n_frames, self.training = names, n_frames, training

    def frames(self, name):
        video = videos[name]
        start = random.randint(0, len(video) - self.n_frames) if self.training else 0
        return video[start : start + self.n_frames].astype("float32")

    def __call__(self):
        pairs = [(name, int(name.split("-")[1]) % 3) for name in self.names]
        if self.training:
            random.shuffle(pairs)
        for name, label in pairs:
            yield self.frames(name), label


names = list(videos)
output_signature = (tf.TensorSpec((6, 4, 4), tf.float32), tf.TensorSpec((), tf.int16))
train_ds = tf.data.Dataset.from_generator(
    FrameGenerator(names[:40], 6, training=True), output_signature=output_signature
)
val_ds = tf.data.Dataset.from_generator(FrameGenerator(names[40:], 6), output_signature=output_signature)
train_ds = train_ds.shuffle(20).prefetch(tf.data.AUTOTUNE).batch(4)
val_ds = val_ds.cache().prefetch(tf.data.AUTOTUNE).batch(4)
model = keras.Sequential([keras.Input((6, 4, 4)), keras.layers.Reshape((6, 16)), keras.layers.GRU(8)])
model.add(keras.layers.Dense(3))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    train_ds, epochs=5, validation_data=val_ds, verbose=0,
    callbacks=[keras.callbacks.EarlyStopping(patience=2, monitor="val_loss")],
)
