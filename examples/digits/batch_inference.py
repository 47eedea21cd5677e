"""Batch inference: load the model of a trial, predict, and write the predictions to a file.

Run it as a job:   det job run batch_inference.yaml .
"""

from pathlib import Path

import numpy as np
from train import load_data

import det_keras as det


def main():
    context = det.keras.init()
    data = context.config_data

    model = context.load_checkpoint_model(trial_id=data["trial_id"], best=data.get("best", False))
    _, (x, y) = load_data()
    predictions = context.predict(model, x, batch_size=data["batch_size"]).argmax(axis=1)

    output = Path(data["output"]).expanduser().absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(output, predictions, fmt="%d")
    print(f"accuracy: {np.mean(predictions == y):.4f}")
    print(f"{len(predictions)} predictions written to {output}")


if __name__ == "__main__":
    main()
