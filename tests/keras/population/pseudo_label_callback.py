# The form of koshian2/Pseudo-Label-Keras, pseudo_cifar.py: a callback holds the labels, weighs them and feeds the fit
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(39)  #> context = det.keras.init(seed=39)
x, y = load_digits(return_X_y=True)
x, y = (x[:460] / 16).astype("float32"), y[:460]


class PseudoCallback(keras.callbacks.Callback):
    def __init__(self, model, n_labeled_sample, batch_size):
        super().__init__()
        self.network, self.batch_size = model, batch_size
        self.x_labeled, self.y_labeled = x[:n_labeled_sample], y[:n_labeled_sample]
        self.x_unlabeled, self.y_truth = x[n_labeled_sample:400], y[n_labeled_sample:400]
        self.y_pseudo = np.random.randint(10, size=len(self.x_unlabeled))
        self.alpha_t = keras.Variable(0.0, trainable=False)
        self.unlabeled_accuracy, self.labeled_accuracy = [], []

    def train_generator(self):
        while True:
            both = np.concatenate([self.x_labeled, self.x_unlabeled])
            labels = np.concatenate([self.y_labeled, self.y_pseudo])
            flags = np.repeat([0.0, 1.0], [len(self.x_labeled), len(self.x_unlabeled)])
            order = np.random.permutation(len(both))
            for i in range(len(order) // self.batch_size):
                part = order[i * self.batch_size : (i + 1) * self.batch_size]
                yield both[part], np.stack([labels[part], flags[part]], axis=1).astype("float32")

    def loss_function(self, y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true[:, 0], y_pred)
        return tf.reduce_mean(loss * tf.where(y_true[:, 1] > 0, self.alpha_t, 1.0))

    def on_epoch_end(self, epoch, logs=None):
        self.alpha_t.assign(min(3.0, max(0.0, (epoch - 1) * 0.5)))
        self.y_pseudo = self.network.predict(self.x_unlabeled, verbose=0).argmax(axis=1)
        self.unlabeled_accuracy.append(float(np.mean(self.y_pseudo == self.y_truth)))
        guessed = self.network.predict(self.x_labeled, verbose=0).argmax(axis=1)
        self.labeled_accuracy.append(float(np.mean(guessed == self.y_labeled)))


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dropout(0.2)])
model.add(keras.layers.Dense(10, "softmax"))
pseudo = PseudoCallback(model, n_labeled_sample=80, batch_size=32)
model.compile("adam", loss=pseudo.loss_function)
history = model.fit(  #> history = context.fit(model,
    pseudo.train_generator(), steps_per_epoch=12, epochs=5, callbacks=[pseudo], verbose=0,
    validation_data=(x[400:], np.stack([y[400:], np.zeros(60)], axis=1).astype("float32")),
)
RESULT = [pseudo.unlabeled_accuracy, pseudo.labeled_accuracy]
