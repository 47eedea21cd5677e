"""Where experiments, trials and jobs come from: stored, returned, replaced and deleted."""

from __future__ import annotations

from sqlalchemy import func, select

from det_keras.master.database.models import ProvenanceRow
from master.fakes import SINGLE, eventually

RECORD = {"command": "det experiment create", "packages": ["a==1"], "repository": {"diff": "+\0\n"}}


def read(client, path, **options):
    return client.get(f"/api/v1/{path}/provenance", **options)


def test_record_of_a_submission_is_returned_as_it_was_sent(client):
    number = client.create(SINGLE, provenance=RECORD)
    assert read(client, f"experiments/{number}") == {"provenance": RECORD}
    assert read(client, f"experiments/{client.create()}") == {"provenance": None}


def test_latest_run_of_a_trial_replaces_the_record(client):
    trial = client.trials(client.create())[0]["id"]
    assert read(client, f"trials/{trial}") == {"provenance": None}
    for host in ("first", "second"):
        client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": {"host": host}})
        assert read(client, f"trials/{trial}") == {"provenance": {"host": host}}
    client.post(f"/api/v1/trials/{trial}/provenance", {})
    assert read(client, f"trials/{trial}") == {"provenance": {"host": "second"}}


MODEL = {"name": "m", "layers": [{"name": "dense", "snake_case": 1, "isCut": False}]}


def test_model_and_place_of_a_trial_do_not_replace_each_other(client):
    trial = client.trials(client.create())[0]["id"]

    def report(**record):
        client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": record})
        return read(client, f"trials/{trial}")["provenance"]

    assert report(model=MODEL) == {"model": MODEL}
    assert report(host="first", command="c") == {"host": "first", "command": "c", "model": MODEL}
    # The next run of the trial: the same model once more.
    assert report(host="second") == {"host": "second", "model": MODEL}
    assert report(model=MODEL) == {"host": "second", "model": MODEL}
    other = {"name": "other"}
    assert report(model=other) == {"host": "second", "model": other}
    assert report(host="third", model=MODEL) == {"host": "third", "model": MODEL}
    # One that is empty removes nothing.
    assert report(model={}) == {"host": "third", "model": MODEL}


def test_model_that_is_no_object_is_refused(client):
    trial = client.trials(client.create())[0]["id"]
    for value in (None, 5, "text", [MODEL], True):
        body = {"provenance": {"host": "h", "model": value}}
        client.post(f"/api/v1/trials/{trial}/provenance", body, status=400)
    assert read(client, f"trials/{trial}") == {"provenance": None}


def test_job_has_a_record_of_its_own(client):
    job = client.post("/api/v1/commands", {"config": {"entrypoint": ["a"]}, "provenance": RECORD})["command"]
    assert read(client, f"commands/{job['id']}") == {"provenance": RECORD}


def test_what_does_not_exist_has_none(client):
    for path in ("experiments/99", "trials/99", "commands/none"):
        read(client, path, status=404)


def test_long_record_is_refused_and_nothing_is_stored(client):
    long = {"provenance": {"packages": ["a" * (1 << 20)]}}
    client.post("/api/v1/experiments", {"config": SINGLE, **long}, status=400)
    assert client.get("/api/v1/experiments")["experiments"] == []
    client.post("/api/v1/commands", {"config": {"entrypoint": ["a"]}, **long}, status=400)
    trial = client.trials(client.create())[0]["id"]
    client.post(f"/api/v1/trials/{trial}/provenance", long, status=400)


def test_records_are_deleted_with_their_experiment(world, client):
    number = client.create(SINGLE, provenance=RECORD)
    trial = client.trials(number)[0]["id"]
    client.post(f"/api/v1/trials/{trial}/provenance", {"provenance": {**RECORD, "model": MODEL}})
    kept = client.create(SINGLE, provenance=RECORD)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    client.call("DELETE", f"/api/v1/experiments/{number}")

    def subjects():
        with world.master.store.reading() as session:
            return session.scalars(select(ProvenanceRow.subject)).all()

    eventually(lambda: subjects() == [f"experiment:{kept}"])
    with world.master.store.reading() as session:
        assert session.scalar(select(func.count()).select_from(ProvenanceRow)) == 1
