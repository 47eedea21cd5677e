# The form of jaungiers/LSTM-Neural-Network-for-Time-Series-Prediction, core/model.py: one long epoch from a generator
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(31)  #> context = det.keras.init(seed=31)
series = np.stack([np.sin(np.arange(260) / 9), np.random.normal(scale=0.1, size=260).cumsum()], axis=1) + 3


class DataLoader:
    def __init__(self, data, split):
        self.data_train, self.data_test = data[: int(len(data) * split)], data[int(len(data) * split) :]
        self.len_train = len(self.data_train)

    def next_window(self, data, i, seq_len):
        window = data[i : i + seq_len]
        window = window / window[0] - 1
        return window[:-1], window[-1, [0]]

    def generate_train_batch(self, seq_len, batch_size):
        i = 0
        while True:
            x_batch, y_batch = [], []
            for _ in range(batch_size):
                if i >= self.len_train - seq_len:
                    i = 0
                x, y = self.next_window(self.data_train, i, seq_len)
                x_batch.append(x)
                y_batch.append(y)
                i += 1
            yield np.array(x_batch), np.array(y_batch)


class Model:
    def __init__(self):
        self.model = keras.Sequential([keras.Input((9, 2)), keras.layers.LSTM(8, return_sequences=True)])
        self.model.add(keras.layers.Dropout(0.2))
        self.model.add(keras.layers.LSTM(8))
        self.model.add(keras.layers.Dense(1))
        self.model.compile(loss="mse", optimizer="adam")

    def train_generator(self, data_gen, epochs, steps_per_epoch):
        callbacks = [keras.callbacks.ModelCheckpoint("model.keras", monitor="loss", save_best_only=True)]
        self.model.fit(  #> context.fit(self.model,
            data_gen, steps_per_epoch=steps_per_epoch, epochs=epochs, callbacks=callbacks, verbose=0,
            #>+ validate=False,
        )

    def predict_sequence_full(self, window, count):
        predicted = []
        for _ in range(count):
            predicted.append(float(self.model.predict(window[None], verbose=0)[0, 0]))
            window = np.concatenate([window[1:], [[predicted[-1], window[-1, 1]]]])
        return predicted


data, model = DataLoader(series, 0.85), Model()
steps_per_epoch = (data.len_train - 10) // 4
model.train_generator(data.generate_train_batch(10, 4), epochs=1, steps_per_epoch=steps_per_epoch)
RESULT = model.predict_sequence_full(data.next_window(data.data_test, 0, 10)[0], 6)
