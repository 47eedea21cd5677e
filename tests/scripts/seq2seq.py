"""Write a date such as 3-jan-07 as 07/01/03: a character-level sequence to sequence model."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(13)

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()

rng = np.random.default_rng(3)
numbers = zip(rng.integers(1, 29, 1024), rng.integers(0, 12, 1024), rng.integers(0, 100, 1024))
pairs = [(f"{d}-{MONTHS[m]}-{y:02}", f"\t{y:02}/{m + 1:02}/{d:02}\n") for d, m, y in numbers]
inputs, targets = [text for text, _ in pairs], [text for _, text in pairs]
input_tokens = {char: i for i, char in enumerate(sorted(set("".join(inputs)) | {" "}))}
target_tokens = {char: i for i, char in enumerate(sorted(set("".join(targets)) | {" "}))}


def one_hot(texts, tokens, length, offset=0):
    data = np.zeros((len(texts), length, len(tokens)), dtype="float32")
    for row, text in enumerate(texts):
        for position, char in enumerate(text[offset:].ljust(length)):
            data[row, position, tokens[char]] = 1.0
    return data


encoder_data = one_hot(inputs, input_tokens, 9)
decoder_data = one_hot(targets, target_tokens, 10)
decoder_targets = one_hot(targets, target_tokens, 10, offset=1)

encoder_inputs = keras.Input((None, len(input_tokens)))
_, state_h, state_c = layers.LSTM(24, return_state=True)(encoder_inputs)
decoder_inputs = keras.Input((None, len(target_tokens)))
decoder_lstm = layers.LSTM(24, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=[state_h, state_c])
decoder_dense = layers.Dense(len(target_tokens), activation="softmax")
model = keras.Model([encoder_inputs, decoder_inputs], decoder_dense(decoder_outputs))

model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    [encoder_data, decoder_data],
    decoder_targets,
    batch_size=32,
    epochs=3,
    validation_split=0.2,
)
model.save("s2s_model.keras")

# Decode greedily, with the trained layers in two models of their own.
encoder = keras.Model(encoder_inputs, [state_h, state_c])
states = [keras.Input((24,)), keras.Input((24,))]
outputs, *new_states = decoder_lstm(decoder_inputs, initial_state=states)
decoder = keras.Model([decoder_inputs, *states], [decoder_dense(outputs), *new_states])

state, char, decoded = encoder.predict(encoder_data[:1], verbose=0), "\t", ""
while char != "\n" and len(decoded) < 9:
    token = one_hot([char], target_tokens, 1)
    probabilities, *state = decoder.predict([token, *state], verbose=0)
    char = list(target_tokens)[int(probabilities[0, -1].argmax())]
    decoded += char
print(inputs[0], "->", decoded)
