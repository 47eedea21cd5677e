# The form of umbertogriffo/focal-loss-keras, src/loss_function/losses.py: a closure for each gamma
import keras
import numpy as np
from keras import ops

#>+ import det_keras as det

keras.utils.set_random_seed(13)  #> context = det.keras.init(seed=13)
x = np.random.normal(size=(400, 6)).astype("float32")
y = ((x**2).sum(1) > 10).astype("float32")


def binary_focal_loss(gamma=2.0, alpha=0.25):
    def binary_focal_loss_fixed(y_true, y_pred):
        y_pred = ops.clip(y_pred, 1e-7, 1 - 1e-7)
        p_t = ops.where(y_true == 1, y_pred, 1 - y_pred)
        alpha_t = ops.where(y_true == 1, alpha, 1 - alpha)
        return ops.mean(ops.sum(-alpha_t * (1 - p_t) ** gamma * ops.log(p_t), axis=1))

    return binary_focal_loss_fixed


best_model, best_score, scores = None, 0.0, {}
for gamma in (0.0, 1.0, 2.0):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, "relu"), keras.layers.BatchNormalization()]
    )
    model.add(keras.layers.Dense(1, "sigmoid"))
    model.compile(
        keras.optimizers.Adam(0.01), [binary_focal_loss(gamma)], metrics=[keras.metrics.AUC(name="auc")]
    )
    history = model.fit(  #> history = context.fit(model,
        x[:320], y[:320, None], batch_size=32, epochs=2, verbose=0, validation_data=(x[320:], y[320:, None]),
    )
    scores[gamma] = history.history["val_auc"][-1]
    if scores[gamma] > best_score:
        best_model, best_score = model, scores[gamma]
RESULT = [scores, best_model.evaluate(x, y[:, None], verbose=0)]
