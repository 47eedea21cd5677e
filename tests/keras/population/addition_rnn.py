# The form of keras-team/keras, examples/addition_rnn.py: a loop of one-epoch fits, each followed by samples
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(32)  #> context = det.keras.init(seed=32)
chars = sorted("0123456789+ ")


def encode(text, length):
    rows = np.zeros((length, len(chars)))
    for i, char in enumerate(text.ljust(length)):
        rows[i, chars.index(char)] = 1
    return rows


questions, expected, seen = [], [], set()
while len(questions) < 250:
    a, b = (int("".join(np.random.choice(list("0123456789")) for _ in range(2))) for _ in range(2))
    key = tuple(sorted((a, b)))
    if key not in seen:
        seen.add(key)
        questions.append(f"{a}+{b}")
        expected.append(str(a + b))
x = np.array([encode(question, 5) for question in questions])
y = np.array([encode(answer, 3) for answer in expected])
indices = np.arange(len(y))
np.random.shuffle(indices)
x, y = x[indices], y[indices]
x_train, y_train, x_val, y_val = x[:220], y[:220], x[220:], y[220:]

model = keras.Sequential([keras.Input((5, len(chars))), keras.layers.LSTM(16), keras.layers.RepeatVector(3)])
model.add(keras.layers.LSTM(16, return_sequences=True))
model.add(keras.layers.Dense(len(chars), activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
answers = []
for iteration in range(1, 6):
    model.fit(  #> context.fit(model,
        x_train, y_train, batch_size=22, epochs=1, validation_data=(x_val, y_val), verbose=0,
    )
    for _ in range(2):
        ind = np.random.randint(0, len(x_val))
        guess = model.predict(x_val[[ind]], verbose=0).argmax(axis=-1)[0]
        answers.append([iteration, int(ind), "".join(chars[i] for i in guess)])
RESULT = answers
