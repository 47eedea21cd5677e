"""Write text character by character; a callback shows samples while the network learns."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(61)

WINDOW = 10

rng = np.random.default_rng(12)
words = ["the cat sat on the mat", "a dog ran in the park", "the sun is in the sky", "a bird sat in a tree"]
text = ". ".join(rng.choice(words, 60))
chars = sorted(set(text))
index = {char: number for number, char in enumerate(chars)}
encoded = np.array([index[char] for char in text])
windows = np.lib.stride_tricks.sliding_window_view(encoded, WINDOW + 1)[:1280]
x, y = windows[:, :-1], windows[:, -1]


class TextGenerator(keras.callbacks.Callback):
    """Continues a prompt every other epoch, and counts what it has written."""

    def __init__(self, prompt, length):
        super().__init__()
        self.prompt = prompt
        self.length = length
        self.calls = 0
        self.written = 0

    def sample(self, probabilities, temperature=0.8):
        logits = np.log(probabilities.astype("float64") + 1e-9) / temperature
        weights = np.exp(logits - logits.max())
        return np.random.choice(len(chars), p=weights / weights.sum())

    def on_epoch_end(self, epoch, logs=None):
        self.calls += 1
        if self.calls % 2:
            return
        generated = [index[char] for char in self.prompt]
        for _ in range(self.length):
            window = np.array(generated[-WINDOW:])[None]
            generated.append(self.sample(np.asarray(self.model(window))[0]))
        self.written += self.length
        print("\n", "".join(chars[number] for number in generated), f"({self.written} characters so far)")


model = keras.Sequential(
    [
        keras.Input((WINDOW,), dtype="int32"),
        layers.Embedding(len(chars), 8),
        layers.SimpleRNN(32),
        layers.Dense(len(chars), activation="softmax"),
    ]
)
model.compile(optimizer=keras.optimizers.RMSprop(0.005), loss="sparse_categorical_crossentropy")
generator = TextGenerator("the sun is", length=12)
history = model.fit(x, y, batch_size=64, epochs=4, callbacks=[generator])
print("Samples written:", generator.calls // 2, "characters:", generator.written)
