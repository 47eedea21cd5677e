# The form of OverLordGoldDragon/keras-adamw, example.py: an optimizer with counters that the script resets between fits
import keras
import numpy as np
import tensorflow as tf

#>+ import det_keras as det

keras.utils.set_random_seed(16)  #> context = det.keras.init(seed=16)


class AdamW(keras.optimizers.Adam):
    def __init__(self, learning_rate=0.01, total_iterations=0, eta_min=0.0, weight_norm=0.01, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.t_cur = tf.Variable(0, dtype="int64", trainable=False)
        self.eta_t = tf.Variable(1.0, trainable=False)
        self.total_iterations, self.eta_min, self.weight_norm = total_iterations, eta_min, weight_norm
        self.restarts = 0

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * self.eta_t)
        variable.assign_sub(
            self.weight_norm * learning_rate * self.eta_t * keras.ops.convert_to_tensor(variable)
        )

    def apply(self, grads, trainable_variables=None):
        share = tf.cast(self.t_cur, "float32") / self.total_iterations
        self.eta_t.assign(self.eta_min + 0.5 * (1 - self.eta_min) * (1 + tf.cos(np.pi * share)))
        self.t_cur.assign_add(1)
        return super().apply(grads, trainable_variables)

    def restart(self):
        self.t_cur.assign(0)
        self.restarts += 1


inputs = keras.Input(batch_shape=(12, 6, 2))
hidden = keras.layers.LSTM(8, dropout=0.1)(inputs)
model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
model.compile(AdamW(total_iterations=12), loss="binary_crossentropy")
eta_history, lr_history = [], []
callback = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: eta_history.append(float(model.optimizer.eta_t.numpy()))
)
for epoch in range(4):
    x = np.random.rand(12 * 12, 6, 2)
    y = np.random.randint(0, 2, 12 * 12)
    history = model.fit(  #> history = context.fit(model,
        x, y, batch_size=12, verbose=0, callbacks=[callback],
        #>+ validate=False,
    )
    lr_history.append([int(model.optimizer.t_cur.numpy()), history.history["loss"][0]])
    if epoch % 2:
        model.optimizer.restart()
RESULT = [eta_history, lr_history, model.optimizer.restarts]
