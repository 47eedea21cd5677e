# The form of keras-team/keras, examples/lstm_text_generation.py: after each epoch a LambdaCallback samples a text
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(12)  #> context = det.keras.init(seed=12)
text = "she sells sea shells by the sea shore and the shells she sells are sea shells for sure. " * 6
chars = sorted(set(text))
numbers = {char: index for index, char in enumerate(chars)}
maxlen, step = 8, 2
starts = range(0, len(text) - maxlen, step)
x = np.zeros((len(starts), maxlen, len(chars)), dtype="float32")
y = np.zeros((len(starts), len(chars)), dtype="float32")
for row, start in enumerate(starts):
    for place, char in enumerate(text[start : start + maxlen]):
        x[row, place, numbers[char]] = 1
    y[row, numbers[text[start + maxlen]]] = 1

model = keras.Sequential([keras.Input((maxlen, len(chars))), keras.layers.LSTM(24)])
model.add(keras.layers.Dense(len(chars), activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.RMSprop(learning_rate=0.01))
written = []


def sample(preds, temperature=1.0):
    preds = np.log(np.asarray(preds).astype("float64") + 1e-9) / temperature
    preds = np.exp(preds) / np.sum(np.exp(preds))
    return np.argmax(np.random.multinomial(1, preds, 1))


def on_epoch_end(epoch, logs):
    start = np.random.randint(0, len(text) - maxlen - 1)
    for diversity in (0.5, 1.2):
        sentence = generated = text[start : start + maxlen]
        for _ in range(6):
            encoded = np.zeros((1, maxlen, len(chars)))
            for place, char in enumerate(sentence):
                encoded[0, place, numbers[char]] = 1.0
            char = chars[sample(model.predict(encoded, verbose=0)[0], diversity)]
            generated += char
            sentence = sentence[1:] + char
        written.append(generated)


print_callback = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=32, epochs=5, verbose=0, callbacks=[print_callback],
    #>+ validate=False,
)
RESULT = written
