# The form of keras-team/keras issue #6507: a callback computes F1 and confusion matrices with scikit-learn each epoch
import keras
import numpy as np
import sklearn.metrics as sklm
from sklearn.datasets import load_iris

#>+ import det_keras as det

keras.utils.set_random_seed(45)  #> context = det.keras.init(seed=45)
x, y = load_iris(return_X_y=True)
order = np.random.permutation(len(x))
x, y = ((x - x.mean(0)) / x.std(0)).astype("float32")[order], np.eye(3)[y[order]]
x_train, y_train, x_val, y_val = x[:110], y[:110], x[110:], y[110:]
best_f1 = 0.0


class Metrics(keras.callbacks.Callback):
    def __init__(self, validation_data):
        super().__init__()
        self.validation_data = validation_data

    def on_train_begin(self, logs=None):
        self.confusion, self.precision, self.f1s = [], [], []

    def on_epoch_end(self, epoch, logs=None):
        global best_f1
        score = np.asarray(self.model.predict(self.validation_data[0], verbose=0))
        predict, targ = score.argmax(axis=1), self.validation_data[1].argmax(axis=1)
        self.f1s.append(sklm.f1_score(targ, predict, average="macro"))
        self.precision.append(sklm.precision_score(targ, predict, average="macro", zero_division=0))
        self.confusion.append(sklm.confusion_matrix(targ, predict, labels=[0, 1, 2]))
        if self.f1s[-1] > best_f1:
            best_f1 = self.f1s[-1]
            self.model.save_weights("best_f1.weights.h5")


metrics = Metrics((x_val, y_val))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
model.compile(keras.optimizers.Adam(0.02), "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(  #> history = context.fit(model,
    x_train, y_train, epochs=7, batch_size=11, validation_data=(x_val, y_val), verbose=0, callbacks=[metrics],
)
model.load_weights("best_f1.weights.h5")
RESULT = [metrics.f1s, metrics.precision, np.array(metrics.confusion).tolist(), best_f1]
