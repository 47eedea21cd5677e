"""Every call with bodies, parameters and paths that a machine thinks up, as each kind of caller.

No answer is a fault of the master's, none holds a secret, and nobody changes what belongs to others. Some 250 requests
of each caller; with ``DET_KERAS_TEST_AMOUNT=all``, 20,000.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import pytest
from amount import AMOUNT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from master.fakes import SINGLE, FakePool
from master.test_fuzz import NOT_CALLED, Known, schemathesis, send
from sqlalchemy import select

from det_keras.master.accounts.auth import DEFAULT_USER
from det_keras.master.database.models import Base, ExperimentRow, TokenRow, UserRow, WebhookRow, WorkspaceRow
from det_keras.master.database.store import Transaction
from det_keras.protocol import states

REQUESTS = 20_000 if AMOUNT == "all" else 250
CALLERS = ("nobody", "user", "administrator", "trial")
CANARY = "canary-4f1d"
# In the address of a webhook, which its owner and administrators see.
HIDDEN = "hidden-8c02"
SECRETS = f"""
data: {{secrets: {{token: {CANARY}-data}}}}
environment: {{registry_auth: {{username: me, password: {CANARY}-registry}}}}
"""
# The call exists in Determined only.
NOT_SERVED = 501


class Callers:
    """A master with users, of which one is the victim, and the tokens of all kinds of callers."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self._own_token = world.client.token
        self.victim = self._user("victim")
        self.tokens = {"victim": self._issue("victim")}
        self._user("mallory")
        self._make_webhook()
        self.known = Known(world, SINGLE + SECRETS)

    def _user(self, name: str) -> int:
        with self.world.master.store.writing() as tx:
            row = UserRow(username=name, password_hash=f"{CANARY}-hash", modified_at=_first(tx).modified_at)
            tx.add(row)
            tx.flush()
            return row.id

    def _make_webhook(self) -> None:
        with self.world.master.store.writing() as tx:
            workspace = WorkspaceRow(name="of the victim", owner_id=self.victim)
            tx.add(workspace)
            tx.flush()
            # Nothing is sent: the address is one of this machine.
            trigger = {"id": 1, "type": "CUSTOM", "condition": {}}
            fields = {
                "name": "",
                "format": "DEFAULT",
                "mode": "WORKSPACE",
                "url": f"http://127.0.0.1:9/{HIDDEN}",
            }
            ids = {"workspace_id": workspace.id, "owner_id": self.victim}
            tx.add(WebhookRow(**fields, **ids, triggers=[trigger]))

    def _issue(self, name: str, **options: Any) -> str:
        with self.world.master.store.writing() as tx:
            user = tx.scalars(select(UserRow).where(UserRow.username == name)).one()
            # A call may have taken them away.
            user.active, user.admin = True, name == "admin"
            self.world.master.accounts.user_changed(tx, user)
            return self.world.master.accounts.issue(tx, user, **options)

    def act_as(self, caller: str) -> None:
        """Let the requests that follow have the token of a caller."""
        client = self.known.world.client
        if caller == "trial":
            client.token = self._issue(DEFAULT_USER, is_task=True, allocation_id=self.known.allocation_id)
        else:
            names = {"nobody": None, "user": "mallory", "administrator": "admin"}
            name = names[caller]
            client.token = "" if name is None else self._issue(name)

    def restore(self) -> None:
        """Have something of everything again, whatever the calls before deleted or ended."""
        with self.world.master.store.reading() as session:
            experiment = session.get(ExperimentRow, self.known.experiment_id)
            if experiment is not None and experiment.state in (states.ACTIVE, states.PAUSED):
                return
        for allocation_id in self.world.pool.launched:
            self.world.pool.finish(allocation_id)
        self.world.client.token = self._own_token
        self.known = Known(self.world, SINGLE + SECRETS)

    def rows(self, caller: str) -> dict[str, list[Any]]:
        """Return the rows that a caller must not be able to change."""
        with self.world.master.store.reading() as session:
            if caller == "nobody":
                # A refused login is recorded.
                kept = {"audit", "tokens"}
                tables = [table for table in Base.metadata.sorted_tables if table.name not in kept]
                return {table.name: sorted(map(repr, session.execute(select(table)))) for table in tables}
            own = {"administrator": None, "trial": ()}.get(caller, ("mallory",))
            if own is None:
                return {}
            others = select(UserRow.__table__).where(UserRow.username.not_in(own))
            tokens = select(TokenRow.hash).where(
                TokenRow.user_id == self.victim, TokenRow.allocation_id.is_(None)
            )
            return {
                "users": sorted(map(repr, session.execute(others))),
                "webhooks": sorted(map(repr, session.execute(select(WebhookRow.__table__)))),
                "tokens": sorted(map(repr, session.execute(tokens))),
            }


def _first(tx: Transaction) -> UserRow:
    return tx.scalars(select(UserRow)).first()


@pytest.fixture
def callers(make_world) -> Callers:
    return Callers(make_world(FakePool(64)))


@pytest.mark.parametrize("caller", CALLERS)
def test_caller_meets_no_fault_and_neither_reads_nor_changes_what_belongs_to_others(callers, caller):
    description = callers.world.client.get("/openapi.json")
    operations = [found.ok() for found in schemathesis.openapi.from_dict(description).get_all_operations()]
    called = [found for found in operations if (found.method.upper(), found.path) not in NOT_CALLED]
    tokens = {callers.world.client.token, *callers.tokens.values()}
    answers: Counter[int] = Counter()
    problems: list[str] = []
    for operation in called:
        callers.restore()
        callers.act_as(caller)
        before = callers.rows(caller)

        def judge(case: Any, *, is_there: bool) -> None:
            answer = send(callers.known, case, is_there=is_there)
            status = answer.status_code
            answers[status] += 1
            what = f"{case.method} {case.path} {status}"
            if status >= 500 and status != NOT_SERVED:
                problems.append(f"{what}: {answer.text[:300]}")
            if CANARY in answer.text or any(token in answer.text for token in tokens):
                problems.append(f"{what} answers with a secret: {answer.text[:300]}")
            if caller != "administrator" and HIDDEN in answer.text:
                problems.append(f"{what} answers with the webhook of another: {answer.text[:300]}")
            if caller == "nobody" and status == 200 and (case.method, case.path) not in OPEN:
                problems.append(f"{what} answers without a token.")
            if status in (401, 403) and caller != "nobody":
                # The call before may have ended its login, or its task.
                callers.act_as(caller)

        _generate(operation, max(1, -(-REQUESTS // len(called))), judge)
        after = callers.rows(caller)
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            problems.append(f"{operation.method} {operation.path} changed {', '.join(changed)} of others.")
    _record(caller, answers)
    assert sum(answers.values()) >= REQUESTS * 0.9
    assert not problems, "\n".join(dict.fromkeys(problems))


OPEN = {("GET", "/info"), ("GET", "/api/v1/master"), ("POST", "/api/v1/auth/login"), ("GET", "/login")}


def _generate(operation: Any, count: int, judge: Any) -> None:
    modes = schemathesis.GenerationMode
    strategies = [operation.as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)]

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(strategies), is_there=st.booleans())
    def run(case: Any, is_there: bool) -> None:
        judge(case, is_there=is_there)

    run()


def _record(caller: str, answers: Counter[int]) -> None:
    """Print how many answers there were, by status: the long mode is run to record it."""
    text = json.dumps({str(status): answers[status] for status in sorted(answers)})
    print(f"{caller}: {sum(answers.values())} requests, {text}", file=sys.stderr)
