"""Reports of chosen cards, with text between them."""

from __future__ import annotations

import json
import re
from urllib.parse import urlencode

import pytest

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.web.plotting.chosen import Place, View, parts_of
from master.test_report import figures

OWN = [{"title": "gap", "lines": ["val_loss - loss"], "low": 0.01, "high": 1.0, "log": True}]


@pytest.fixture
def experiment(world):
    """The number of an experiment with two trials that reported three metrics."""
    config = (
        "entrypoint: a\nhyperparameters: {lr: {type: double, minval: 0.1, maxval: 1.0}}\n"
        "searcher: {name: random, metric: val_loss, max_trials: 2}\n"
    )
    number = world.client.create(config=config)
    for i, trial in enumerate(world.client.trials(number)):
        world.wait_for_launch(trial)
        for step in (1, 2, 4):
            world.client.report(trial["id"], "training", step, {"loss": 1 / step})
            metrics = {"val_loss": 1.5 / step + i, "val_accuracy": step / 8}
            world.client.report(trial["id"], "validation", step, metrics)
    return number


def ask(world, experiment, status=200, **body):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.post(f"/experiments/{experiment}/report", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.text if status == 200 else answer.json()["message"]


def titles(html: str) -> list[str]:
    return [re.sub("[\u2068\u2069]", "", one) for one in re.findall(r"<figcaption><h2>(.*?)</h2>", html)]


def view(**settings) -> str:
    return f"/experiments/7?{urlencode(settings)}"


def test_report_has_the_chosen_cards_in_their_order(world, experiment):
    html = ask(world, experiment, cards=["val_accuracy", "val_loss - loss", "training.loss"])
    assert titles(html) == ["val_accuracy", "val_loss - loss", "training.loss"]
    drawn = [figure["curves"]["curves"] for figure in figures(html)]
    assert drawn[0]["lines"][0]["y"] == [0.125, 0.25, 0.5]
    assert drawn[1]["lines"][0]["y"] == [0.5, 0.25, 0.125]
    assert drawn[1]["x"] == [1, 2, 4]
    assert drawn[2]["lines"][1]["y"] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("body", [{"cards": ["val_los"]}, {"text": "![](card:val_los - loss)"}])
def test_unknown_metric_is_refused_with_the_nearest(world, experiment, body):
    refused = ask(world, experiment, 400, **body)
    assert refused == "There is no metric 'val_los'. Did you mean `val_loss`?"


def test_card_stands_where_the_text_says_and_only_there(world, experiment):
    text = "# Why\n\nfirst\n\n![](card:val_loss)\n\nsecond\n![The gap](card:val_loss - loss)\n\nthird\n"
    html = ask(world, experiment, text=text, cards=["val_loss", "val_accuracy"])
    assert titles(html) == ["val_loss", "The gap", "val_accuracy"]
    order = [html.index(one) for one in ("first", "figure-1", "second", "figure-2", "third", "figure-3")]
    assert order == sorted(order)
    assert html.count("figure-1") == 2


def test_cards_of_the_text_stand_beside_those_of_the_wall(world, experiment):
    html = ask(world, experiment, text="![](card:val_loss - loss)")
    assert titles(html)[:3] == ["val_loss - loss", "loss", "accuracy"]
    # With the plots of the search.
    assert len(titles(html)) == 5


def test_settings_of_a_wall_are_taken_over(world, experiment):
    first, second = (trial["id"] for trial in world.client.trials(experiment))
    address = view(own=json.dumps(OWN), baseline=second, smoothing=0.5, range="1~3", log_x="true")
    html = ask(world, experiment, view=f"https://host:8080{address}")
    assert titles(html)[:3] == ["loss", "gap", "accuracy"]
    gap = figures(html)[1]["curves"]
    assert (gap["spec"]["log"], gap["spec"]["low"], gap["spec"]["high"]) == (True, 0.01, 1.0)
    assert (gap["logX"], gap["range"], gap["baseline"]) == (True, [1, 3], second)
    raw = [line for line in gap["curves"]["lines"] if line["isRaw"]]
    smooth = [line for line in gap["curves"]["lines"] if not line["isRaw"]]
    assert (
        sorted(line["trial"] for line in raw) == sorted(line["trial"] for line in smooth) == [first, second]
    )
    assert raw[0]["y"][:2] == [0.5, 0.25]
    assert smooth[0]["y"][1] > 0.25


def test_hidden_runs_are_left_out_and_own_cards_are_chosen_by_title(world, experiment):
    first, second = (trial["id"] for trial in world.client.trials(experiment))
    html = ask(world, experiment, view=view(own=json.dumps(OWN), hidden=first), cards=["gap"])
    (gap,) = figures(html)
    assert [line["trial"] for line in gap["curves"]["curves"]["lines"]] == [second]
    assert gap["curves"]["spec"]["low"] == 0.01


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"own": "[{"}, "cut off"),
        ({"own": '[{"title": 3}]'}, "a title and lines"),
        ({"own": "{}"}, "a title and lines"),
        ({"x": "hours"}, "must be one of"),
        ({"smoothing": "1"}, "below 1"),
        ({"smoothing": "nan"}, "below 1"),
        ({"range": "1"}, "cannot be read"),
        ({"range": "1~inf"}, "two numbers"),
        ({"baseline": "best"}, "cannot be read"),
        ({"baseline": "99999"}, "not of this experiment"),
    ],
)
def test_view_that_cannot_be_read_is_refused(world, experiment, settings, reason):
    assert reason in ask(world, experiment, 400, view=view(**settings))


def test_number_of_cards_has_a_bound(world, experiment):
    ask(world, experiment, 400, cards=["loss"] * 21)
    text = "\n".join(f"![](card:loss + {i})\n" for i in range(20))
    assert "at most 20 cards" in ask(world, experiment, 400, text=text, cards=["val_loss"])


def test_places_in_a_text_are_whole_lines_outside_of_code():
    text = "a ![](card:loss)\n```\n![](card:loss)\n```\n![t](card:max(loss, 1))\n![](http://x/y.png)"
    first, place, last = parts_of(text)
    assert first == "a ![](card:loss)\n```\n![](card:loss)\n```"
    assert place == Place("max(loss, 1)", "t")
    assert last == "![](http://x/y.png)"


def test_address_without_settings_is_the_default_view():
    assert View.of("/experiments/7") == View.of("") == View()
    with pytest.raises(InvalidArgumentError, match="no address"):
        View.of("http://[")
