"""What the pages of these tests show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from master.conftest import RealMaster
from master.fakes import file_entry

__all__ = ["EVIL", "PRELUDE", "Search", "digits_search", "named_search", "submit", "talker"]

#: What the scripts of trials begin with: functions that report to the master.
PRELUDE = (Path(__file__).parents[1] / "master" / "trial_script.py").read_bytes()
_DIGITS = Path(__file__).parents[2] / "examples" / "digits"

#: What would break out of text, of an attribute and of a script, of a line, and of a layout.
EVIL = (
    "<script>alert(1)</script>\"' onload=alert(2) <img src=x onerror=alert(3)></title></script>{{7*7}}"
    " \u202e\u05d0\u05d1 \U0001f600 " + "W" * 10_000
)

_TRAIN = """
import uuid
hparams = json.loads(os.environ["DET_HPARAMS"])
for step in range(1, 5):
    loss = float(hparams["width"]) / step
    report("training", step * 10, **{"loss": loss, "epochs": step, NAME[:200]: step})
    report("validation", step * 10, **{METRIC: loss, "epochs": step})
    print(f"step {step}", flush=True)
print(NAME, flush=True)
checkpoint(str(uuid.uuid4()), 40)
"""

_TALK = """
hparams = json.loads(os.environ["DET_HPARAMS"])
gate = pathlib.Path(hparams["gate"])
while hparams["start"] and not os.path.exists(hparams["start"]):
    time.sleep(0.05)
step = 0
while not gate.exists():
    step += 1
    report("validation", step, loss=1.0 / step)
    print(f"line {step}", flush=True)
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Search:
    """An experiment and its trials.

    Attributes:
        number: of the experiment.
        trials: their numbers.
    """

    number: int
    trials: list[int]


def submit(site: RealMaster, config: dict[str, Any], files: dict[str, bytes]) -> int:
    """Make an experiment and return its number."""
    import yaml

    entries = [file_entry(name, content) for name, content in files.items()]
    return site.client.create(yaml.safe_dump(config, allow_unicode=True), modelDefinition=entries)


def named_search(site: RealMaster, name: str, metric: str = "loss") -> Search:
    """Run a search of two trials, with `name` wherever users may name something; return it when it is over."""
    script = f"NAME = {name!r}\nMETRIC = {metric!r}\n{_TRAIN}"
    config = {
        "name": name[:120],
        "description": name,
        "labels": [name[:40], "shared"],
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "width": {"type": "int", "minval": 1, "maxval": 9},
            name[:200]: {"type": "categorical", "vals": [name, "plain"]},
        },
        "searcher": {"name": "random", "metric": metric, "smaller_is_better": True, "max_trials": 2},
        "max_restarts": 0,
        # Else both trials draw the same hyperparameters once in a while, and nothing differs.
        "reproducibility": {"experiment_seed": 1},
    }
    files = {"train.py": PRELUDE + script.encode(), f"{name[:60].replace('/', '|')}.txt": name.encode()}
    number = submit(site, config, files)
    site.client.wait_for_state(number, "COMPLETED", 60)
    return Search(number, sorted(trial["id"] for trial in site.client.trials(number)))


def talker(site: RealMaster, gate: Path, start: Path | None = None) -> Search:
    """Start a trial that reports and prints ten times a second, once `start` exists, until `gate` exists."""
    config = {
        "name": "talker",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"gate": str(gate), "start": str(start or "")},
        "searcher": {"name": "single", "metric": "loss"},
        "max_restarts": 0,
    }
    number = submit(site, config, {"train.py": PRELUDE + _TALK.encode()})
    return Search(number, [trial["id"] for trial in site.client.trials(number)])


def digits_search(site: RealMaster, epochs: int = 40) -> int:
    """Start a real search on handwritten digits; return the experiment's number."""
    config = {
        "name": "digits",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "global_batch_size": 32,
            "learning_rate": {"type": "log", "base": 10, "minval": -4, "maxval": -2},
            "dropout": 0.25,
            "filters": 8,
        },
        "searcher": {
            "name": "random",
            "metric": "val_accuracy",
            "smaller_is_better": False,
            "max_trials": 2,
            "max_length": {"epochs": epochs},
        },
        "max_restarts": 0,
        "reproducibility": {"experiment_seed": 17},
    }
    names = ("train.py", "const.yaml")
    return submit(site, config, {name: (_DIGITS / name).read_bytes() for name in names})


def make_webhook(site) -> None:
    """Make a webhook in a workspace of its own; nothing is sent to its address."""
    workspace = site.client.post("/api/v1/workspaces", {"name": "told"})["workspace"]["id"]
    trigger = {"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": "<b>" + "long" * 50}}
    body = {"url": f"https://93.184.215.14/{'x' * 200}", "name": "mine", "webhookType": "WEBHOOK_TYPE_SLACK"}
    site.client.post("/api/v1/webhooks", {**body, "workspaceId": workspace, "triggers": [trigger]})
