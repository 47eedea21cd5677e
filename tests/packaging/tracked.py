"""``python tracked.py TRACKER plain|managed FOLDER``: train under a tracker, and print what it recorded as JSON."""

import json
import os
import sys
import zipfile
from pathlib import Path

TRACKER, WAY, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
FOLDER.mkdir()
if TRACKER == "comet":
    # It looks at what is imported after it.
    import comet_ml

import keras  # noqa: E402 - after what looks at it
import numpy as np  # noqa: E402

# Of the process and its time.
PROCESS = ("sys.", "epoch_duration", "process duration", "curr_", "run_arg")


def train(*callbacks):
    x = np.random.RandomState(0).rand(64, 4).astype("float32")
    y = x.sum(axis=1)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    fit = model.fit
    if WAY == "managed":
        import det_keras as det

        config = {"scheduling_unit": 3, "min_checkpoint_period": {"batches": 3}}
        context = det.keras.init(seed=3, run_dir=FOLDER / "run", config=config)

        def fit(*arguments, **named):
            return context.fit(model, *arguments, **named)

    stop = keras.callbacks.EarlyStopping(patience=3)
    fit(x, y, batch_size=16, epochs=4, validation_data=(x[:16], y[:16]), verbose=0, shuffle=False,
        callbacks=[stop, *callbacks])  # fmt: skip


def mlflow():
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{FOLDER}/mlflow.db")
    mlflow.tensorflow.autolog(log_models=False)
    train()
    client = mlflow.tracking.MlflowClient()
    return [
        [
            run.info.status,
            run.data.params,
            {
                name: [
                    (point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
        ]
        for run in client.search_runs(["0"])
    ]


def comet():
    experiment = comet_ml.OfflineExperiment(
        project_name="p", offline_directory=str(FOLDER), display_summary_level=0
    )
    train()
    experiment.end()
    (path,) = FOLDER.glob("*.zip")
    lines = zipfile.ZipFile(path).read("messages.json").decode().splitlines()
    found = []
    for message in map(json.loads, lines):
        content = message.get("payload", message)
        if message["type"] == "metric_msg":
            found.append(
                [content["metric"]["metricName"], content["metric"]["metricValue"], content.get("step")]
            )
        elif message["type"] == "parameter_msg":
            found.append(
                [content["param"]["paramName"], content["param"]["paramValue"], content["param"]["step"]]
            )
    return sorted((one for one in found if not one[0].startswith(PROCESS)), key=str)


def clearml():
    from clearml import Task

    Task.set_offline(True)
    task = Task.init("p", "t", output_uri=False, auto_resource_monitoring=False)
    train(keras.callbacks.TensorBoard(str(FOLDER / "events")))
    folder = task.get_offline_mode_folder()
    task.close()
    lines = zipfile.ZipFile(f"{folder}.zip").read("metrics.jsonl").decode().splitlines()
    points = [
        point for line in lines for point in json.loads(line) if point["type"] == "training_stats_scalar"
    ]
    return sorted([point["metric"], point["variant"], point["iter"], point["value"]] for point in points)


def dvclive():
    from dvclive import Live
    from dvclive.keras import DVCLiveCallback

    with Live(str(FOLDER / "live"), save_dvc_exp=False) as live:
        train(DVCLiveCallback(live=live))
    tables = sorted((FOLDER / "live").rglob("*.tsv"))
    found = {
        str(path.relative_to(FOLDER)): [row.split("\t")[-2:] for row in path.read_text().splitlines()]
        for path in tables
    }
    return [found, json.loads((FOLDER / "live" / "metrics.json").read_text())]


os.chdir(FOLDER)
print(
    json.dumps(
        {"mlflow": mlflow, "comet": comet, "clearml": clearml, "dvclive": dvclive}[TRACKER](), sort_keys=True
    )
)
