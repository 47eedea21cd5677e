"""Iris with a `model.fit` of one's own, as written for Determined's DeterminedCallback; `determined` is answered here.

As experiment:   det experiment create const.yaml . --follow
Alone:           python3 -m det_keras.launch.tensorflow -- python3 train.py
"""

import determined as det
import keras
from determined import core
from determined import keras as det_keras
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split


def main(core_context, strategy, checkpoint, continue_id, hparams):
    data = load_iris()
    x, x_val, y, y_val = train_test_split(data.data, data.target, test_size=30, random_state=0)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(hparams["learning_rate"]),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )

    model.fit(
        x,
        y,
        batch_size=hparams["batch_size"],
        epochs=hparams["epochs"],
        validation_data=(x_val, y_val),
        callbacks=[
            det_keras.DeterminedCallback(core_context, checkpoint, continue_id, checkpoint_epochs=0),
            det_keras.TensorBoard(core_context, update_freq="epoch"),
        ],
    )


if __name__ == "__main__":
    info = det.get_cluster_info()
    if info is None:
        checkpoint, continue_id, hparams = (
            None,
            "alone",
            {"learning_rate": 0.01, "batch_size": 16, "epochs": 10},
        )
    else:
        checkpoint, continue_id, hparams = info.latest_checkpoint, info.trial.trial_id, info.trial.hparams
    distributed, strategy = core.DistributedContext.from_tf_config()
    with core.init(distributed=distributed) as core_context:
        main(core_context, strategy, checkpoint, continue_id, hparams)
