# The form of tensorflow/addons, tensorflow_addons/callbacks/time_stopping.py: fits share a budget, here of batches
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(52)  #> context = det.keras.init(seed=52)
x = np.random.normal(size=(240, 8)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("float32")


class BudgetStopping(keras.callbacks.Callback):
    used = 0

    def __init__(self, batches):
        super().__init__()
        self.batches = batches
        self.stopped_epoch = None

    def on_train_batch_end(self, batch, logs=None):
        BudgetStopping.used += 1
        if BudgetStopping.used >= self.batches:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.model.stop_training:
            self.stopped_epoch = epoch

    def on_train_end(self, logs=None):
        if self.stopped_epoch is not None:
            results.append(f"stopped in epoch {self.stopped_epoch} after {BudgetStopping.used} batches")


results, models, units = [], [], 2
while BudgetStopping.used < 70:
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    history = model.fit(  #> history = context.fit(model,
        x, y, batch_size=20, epochs=3, verbose=0, callbacks=[BudgetStopping(70)], validation_split=0.25,
    )
    results.append([units, len(history.history["loss"]), history.history["val_loss"][-1]])
    models.append(model)
    units *= 2
RESULT = [results, BudgetStopping.used]
