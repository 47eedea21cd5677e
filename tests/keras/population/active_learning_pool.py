# The form of modAL-python/modAL, examples/keras_integration.py: a learner takes the least certain samples of a pool
import keras
import numpy as np
from sklearn.datasets import load_digits

#>+ import det_keras as det

keras.utils.set_random_seed(27)  #> context = det.keras.init(seed=27)
x, y = load_digits(return_X_y=True)
x, y = (x[:500] / 16).astype("float32"), np.eye(10, dtype="float32")[y[:500]]


class ActiveLearner:
    def __init__(self, estimator, x_training, y_training, **fit_kwargs):
        self.estimator, self.x_training, self.y_training = estimator, x_training, y_training
        self._fit_to_known(**fit_kwargs)

    def _fit_to_known(self, **fit_kwargs):
        self.estimator.fit(  #> context.fit(self.estimator,
            self.x_training, self.y_training, **fit_kwargs,
            #>+ validate=False,
        )

    def query(self, pool, n_instances):
        uncertainty = 1 - self.estimator.predict(pool, verbose=0).max(axis=1)
        return np.argsort(-uncertainty, kind="stable")[:n_instances]

    def teach(self, x, y, **fit_kwargs):
        self.x_training = np.concatenate([self.x_training, x])
        self.y_training = np.concatenate([self.y_training, y])
        self._fit_to_known(**fit_kwargs)


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dropout(0.25)])
model.add(keras.layers.Dense(10, "softmax"))
model.compile("adadelta", "categorical_crossentropy", metrics=["accuracy"])
x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:], y[400:]
initial_idx = np.random.choice(range(len(x_train)), size=50, replace=False)
x_pool, y_pool = np.delete(x_train, initial_idx, axis=0), np.delete(y_train, initial_idx, axis=0)
learner = ActiveLearner(model, x_train[initial_idx], y_train[initial_idx], batch_size=10, verbose=0)
scores, asked = [], []
for _ in range(6):
    query_idx = learner.query(x_pool, n_instances=10)
    asked.append(query_idx.tolist())
    learner.teach(x_pool[query_idx], y_pool[query_idx], epochs=1, batch_size=10, verbose=0)
    x_pool, y_pool = np.delete(x_pool, query_idx, axis=0), np.delete(y_pool, query_idx, axis=0)
    scores.append(model.evaluate(x_test, y_test, verbose=0)[1])
RESULT = [scores, asked]
