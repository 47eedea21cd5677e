# The form of ageron/handson-ml2, 16_nlp_with_rnns_and_attention.ipynb: a stateful character RNN on windows of tf.data
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(2)  #> context = det.keras.init(seed=2)
text = "the quick brown fox jumps over the lazy dog and the cat sleeps " * 12
letters = sorted(set(text))
encoded = np.array([letters.index(letter) for letter in text])
length, batch_size = 10, 4


def windows(part):
    dataset = tf.data.Dataset.from_tensor_slices(part)
    dataset = dataset.window(length + 1, shift=length, drop_remainder=True)
    dataset = dataset.flat_map(lambda window: window.batch(length + 1))
    return dataset


parts = np.array_split(encoded, batch_size)
dataset = tf.data.Dataset.zip(tuple(map(windows, parts))).map(lambda *rows: tf.stack(rows))
dataset = dataset.map(lambda rows: (tf.one_hot(rows[:, :-1], len(letters)), rows[:, 1:])).prefetch(1)


class ResetStates(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if hasattr(layer, "reset_state"):
                layer.reset_state()


inputs = keras.Input(batch_shape=(batch_size, length, len(letters)))
hidden = keras.layers.GRU(16, return_sequences=True, stateful=True, dropout=0.2)(inputs)
hidden = keras.layers.GRU(16, return_sequences=True, stateful=True)(hidden)
model = keras.Model(inputs, keras.layers.Dense(len(letters), activation="softmax")(hidden))
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam")
history = model.fit(  #> history = context.fit(model,
    dataset, epochs=3, verbose=0, callbacks=[ResetStates()],
    #>+ validate=False,
)
states = [state for layer in model.layers if hasattr(layer, "states") for state in layer.states]
