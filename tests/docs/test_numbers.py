"""Numbers in the documents that follow from the code."""

from __future__ import annotations

import dataclasses

import pytest
from ways import ALIKE, WAYS

from det_keras.config import ExperimentConfig
from det_keras.config.searching.searcher import Searcher
from det_keras.core.media import images, tables
from det_keras.master import wire
from det_keras.master.accounts import attempts, auth
from det_keras.master.api import training as reports
from det_keras.master.experiments import unmanaged
from det_keras.master.reports import metrics
from det_keras.master.server import bodies, connections
from det_keras.master.server.capacity import Capacity
from det_keras.master.tasks.scheduling import DEFAULT_PRIORITY
from det_keras.master.web import alerts, report, wall
from det_keras.protocol import media as protocol_media
from det_keras.protocol import metrics as protocol_metrics
from docs.pages import ROOT

SCRIPTS = len(list((ROOT / "tests" / "scripts").glob("*.py")))
POPULATION = len(list((ROOT / "tests" / "keras" / "population").glob("*.py")))
# Each is killed twice in one run, and once in another.
KILLS = 3 * POPULATION
SMALL, USUAL = (dataclasses.asdict(Capacity.of(limit)) for limit in (64, 1024))
# These are a part of the ones of all addresses, so that nobody meets them alone.
for _numbers in (SMALL, USUAL):
    del _numbers["waiting_per_address"]
BOUNDS = {
    "time for the head of a request, without a login also for its body": f"{connections.REQUEST_S} s",
    "time for a body": f"{bodies._FIRST_S:.0f} s, and one more for each {bodies._BYTES_PER_S >> 10} KiB; "
    f"no gap of more than {bodies._LONGEST_GAP_S:.0f} s",
    "time without progress of a client without a login that reads its answer": f"{connections._STALLED_S} s",
    "time of an idle connection": f"{connections.KEEP_ALIVE_S} s",
    "body without a login": f"{bodies.MOST_ANONYMOUS_BYTES >> 10} KiB",
    "body of a call": f"{bodies.MOST_BYTES >> 20} MiB",
    "body with files of an experiment, job or TensorBoard": f"{bodies.MOST_FILE_BYTES >> 20} MiB",
    "body with lines of a log": f"{bodies.MOST_LOG_BYTES >> 20} MiB",
    "passwords that are checked at once": f"{attempts.THREADS}, and {attempts.MOST_QUEUED} that wait",
}
SENTENCES = {
    "README.md": [
        f"the diffs of {SCRIPTS} examples",
        f"{KILLS} of [{POPULATION} scripts in the form of public ones]",
    ],
    "docs/exact-resume.md": [
        f"has {POPULATION} scripts in the form of public ones",
        f"All {POPULATION} scripts are the same as plain Keras, and end the same after each of {KILLS} kills",
    ],
    "docs/promises.md": [
        f"The tests compare {len(WAYS)} ways of passing data to `fit`",
        f"{len(WAYS) - len(ALIKE)} in `tox -e full`",
        f"{POPULATION} scripts in the form of public ones",
        f"{KILLS} kills, 0 differences",
    ],
    "docs/getting-started.md": [f"the changes of {SCRIPTS} scripts"],
    "docs/master.md": [
        f"| values of a body: items of lists and objects | {wire._MOST_VALUES:,} |",
        *(f"| {bound} | {value} |" for bound, value in BOUNDS.items()),
        *(f"| {SMALL[field]:,} | {USUAL[field]:,} |" for field in SMALL),
        f"| a report of metrics | {reports._MOST_REPORT_BYTES >> 20} MiB, {metrics._MOST_NAMES:,} names |",
        f"| reports of metrics in one call | {protocol_metrics.MOST_TOGETHER} |",
        f"| metadata of a run | {reports._MOST_METADATA_BYTES >> 20} MiB |",
        f"| media of a trial | {protocol_media.MOST_ITEM_BYTES >> 20} MiB each; {protocol_media.MOST_ITEMS:,} of "
        f"{protocol_media.MOST_TRIAL_BYTES >> 30} GiB in all |",
        f"| nesting depth of lists and objects | {wire._MOST_LEVELS} |",
        f"within {auth._WEB_CODE.seconds // 60} minutes | {auth._SESSION.days} days |",
        {5: "has not reported for five minutes"}[unmanaged.LOST_AFTER.seconds // 60],
    ],
    "docs/script.md": [
        f"a grid of at most {images.MOST_IN_GRID} images",
        f"at most {tables.MOST_ROWS:,} rows and {tables.MOST_COLUMNS} columns",
        f"an item of more than {protocol_media.MOST_ITEM_BYTES >> 20} MB, and items beyond "
        f"{protocol_media.MOST_ITEMS:,} or beyond {protocol_media.MOST_TRIAL_BYTES >> 30} GB of a trial",
    ],
    "docs/search.md": [
        f"(1 to 99, default {DEFAULT_PRIORITY})",
        f"default of `max_concurrent_trials` is {Searcher().max_concurrent_trials}",
    ],
    "docs/web.md": [
        f"the best {report.MOST_LINES} runs are shown, and at most {wall._MOST_TRIALS} are drawn",
        f"at most {report._MOST_POINTS:,} positions",
        f"has not reported for {alerts._SILENT_S // 60} minutes",
    ],
    "docs/distributed.md": [f"(default {ExperimentConfig().optimizations.divergence_check_period};"],
}


@pytest.mark.parametrize(
    ("page", "sentence"),
    [(page, sentence) for page, sentences in SENTENCES.items() for sentence in sentences],
)
def test_number_is_that_of_the_code(page, sentence):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert sentence in text
