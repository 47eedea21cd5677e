"""Lines of logs as JSON: what any other writer of JSON would make of them."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from det_keras.master.tasks.logs import encode_lines

NAMES = st.none() | st.text(max_size=20)
LINES = st.tuples(
    st.integers(1, 1 << 60),
    st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)),
    st.text(),
    st.text(max_size=20),
    st.sampled_from([None, "INFO", "ERROR", "LOUD"]),
    st.sampled_from([None, "WARNING", "CRITICAL"]),
    NAMES,
    st.none() | st.integers(0, 999_999_999),
    *[NAMES] * 4,
)


@given(st.lists(LINES, max_size=3), st.none() | st.integers(1, 1 << 60))
def test_lines_are_strict_json_with_the_text_twice(lines, trial_id):
    found = encode_lines(lines, trial_id).decode("ascii").splitlines()
    assert len(found) == len(lines)
    for text, line in zip(found, lines, strict=True):
        number, time, content, task_id, level, derived_level, container, rank, *origin = line
        at = time.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + "Z"
        shown_rank = "" if rank is None else f" [rank={rank}]"
        shown_level = "" if not level else f" {level}:"
        known = (level or derived_level) in {"INFO", "WARNING", "ERROR", "CRITICAL"}
        assert json.loads(text) == {
            "result": {
                "id": str(number),
                **({"taskId": task_id} if trial_id is None else {"trialId": trial_id}),
                "timestamp": at,
                "message": f"[{at}] {(container or '')[:8]:<8}{shown_rank} ||{shown_level} {content}",
                "log": content,
                "level": f"LOG_LEVEL_{level or derived_level}" if known else "LOG_LEVEL_UNSPECIFIED",
                "allocationId": origin[0],
                "agentId": origin[1],
                "containerId": container,
                "rankId": rank,
                "source": origin[2],
                "stdtype": origin[3],
            }
        }
