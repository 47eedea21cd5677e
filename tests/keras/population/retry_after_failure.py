# The form of keras-team/keras issue #12309: a fit fails in its data now and then, the script catches it and tries again
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(51)  #> context = det.keras.init(seed=51)
x = np.random.normal(size=(200, 6)).astype("float32")
y = x @ np.random.normal(size=(6, 1)).astype("float32")


class CorruptError(ValueError):
    pass


class FileBatches(keras.utils.PyDataset):
    def __init__(self, broken, **kwargs):
        super().__init__(**kwargs)
        self.broken = broken

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index in self.broken:
            raise CorruptError(f"file {index}")
        return x[index * 20 : (index + 1) * 20], y[index * 20 : (index + 1) * 20]


class CheckLoss(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.failures = 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches in (18, 37):
            self.failures.append(self.batches)
            raise CorruptError(f"batch {self.batches}")


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
check, errors, history = CheckLoss(), [], None
while history is None:
    try:
        history = model.fit(  #> history = context.fit(model,
            FileBatches(broken=set()), epochs=3, verbose=0, callbacks=[check],
            #>+ validate=False,
        )
    except CorruptError as error:
        errors.append(str(error))
        model.optimizer.learning_rate = float(model.optimizer.learning_rate) / 2
RESULT = [errors, check.failures, float(model.optimizer.learning_rate), history.history["loss"]]
