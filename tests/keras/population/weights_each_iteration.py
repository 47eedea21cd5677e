# The form of keras-team/keras issues #4054 and #9183: weights of each iteration go to a list and a dict of the script
import keras
import numpy as np

#>+ import det_keras as det

keras.utils.set_random_seed(61)  #> context = det.keras.init(seed=61)
x = np.random.normal(size=(200, 5)).astype("float32")
y = x @ np.arange(5, dtype="float32")[:, None]
weights_dict, batch_losses, seen_epochs = {}, [], set()


def collect(losses=batch_losses):
    total = [0.0]

    def on_batch_end(batch, logs):
        total[0] += logs["loss"]
        losses.append([len(losses), total[0]])

    return on_batch_end


model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adagrad(0.1), "mse")
weight_callback = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: seen_epochs.add(epoch),
    on_epoch_end=lambda epoch, logs: weights_dict.update({epoch: model.get_weights()}),
    on_train_batch_end=collect(),
)
history = model.fit(  #> history = context.fit(model,
    x, y, batch_size=20, epochs=5, verbose=0, callbacks=[weight_callback],
    #>+ validate=False,
)
average = [np.mean([weights_dict[epoch][i] for epoch in (2, 3, 4)], axis=0) for i in range(4)]
model.set_weights(average)
RESULT = [batch_losses, sorted(seen_epochs), model.evaluate(x, y, verbose=0)]
