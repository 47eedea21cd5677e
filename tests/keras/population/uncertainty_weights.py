# The form of yaringal/multi-task-learning-example: a loss layer learns the weights of the tasks, its targets are inputs
import keras
import numpy as np
from keras import ops

#>+ import det_keras as det

keras.utils.set_random_seed(26)  #> context = det.keras.init(seed=26)
x = np.random.randn(200, 1).astype("float32")
y1 = 2 * x + 8 + 10 * np.random.randn(200, 1).astype("float32")
y2 = 3 * x + 3 + np.random.randn(200, 1).astype("float32")


class CustomMultiLossLayer(keras.layers.Layer):
    def __init__(self, nb_outputs=2, **kwargs):
        super().__init__(**kwargs)
        self.nb_outputs = nb_outputs
        self.log_vars = [
            self.add_weight(name=f"log_var{i}", shape=(1,), initializer="zeros") for i in range(nb_outputs)
        ]

    def call(self, *inputs):
        trues, preds = inputs[: self.nb_outputs], inputs[self.nb_outputs :]
        loss = 0
        for true, pred, log_var in zip(trues, preds, self.log_vars):
            precision = ops.exp(-log_var[0])
            loss += ops.sum(precision * (true - pred) ** 2 + log_var[0], -1)
        self.add_loss(ops.mean(loss))
        return ops.concatenate(preds, -1)


inputs = keras.Input((1,), name="inp")
hidden = keras.layers.Dense(32, activation="relu")(inputs)
predictions = [keras.layers.Dense(1)(hidden), keras.layers.Dense(1)(hidden)]
prediction_model = keras.Model(inputs, predictions)
targets = [keras.Input((1,), name="y1"), keras.Input((1,), name="y2")]
layer = CustomMultiLossLayer(nb_outputs=2)
trainable_model = keras.Model([inputs, *targets], layer(*targets, *predictions))
trainable_model.compile(optimizer=keras.optimizers.Adam(0.02))
history = trainable_model.fit(  #> history = context.fit(trainable_model,
    [x, y1, y2], epochs=6, batch_size=20, verbose=0,
    #>+ validate=False,
)
RESULT = [float(ops.exp(log_var[0]) ** 0.5) for log_var in layer.log_vars]
