"""Two services on one database against a dictionary: random stories of requests, restarts, failures and restores.

The model has the contexts and the answers of each stream. After every rule, the database must have exactly these steps, each
equal to that of a run that was never interrupted, and within the promise by an optimum that is computed here.
"""

import asyncio
import copy
import dataclasses
import functools
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event
from sqlalchemy.pool import NullPool

import ecl2o as ec
from ecl2o.exceptions import ServiceError
from ecl2o.service import Service, Store, pg_notify, policy_registry, queries
from ecl2o.service import service as service_module
from ecl2o.service.http import app as app_module
from ecl2o.service.http.api import error_body, status_of
from ecl2o.service.models import StepRequest
from ecl2o.service.policy_registry import read_policy

_ALPHA = 3.0
_RATIOS = {"small": 1.6, "other": 1.8}  # promised by the policies
_STREAMS = ("a", "b")
_WAIT = 30.0  # seconds for an answer that must come

services = st.integers(0, 1)
streams = st.sampled_from(_STREAMS)
policies = st.sampled_from(tuple(_RATIOS))
numbers = st.integers(-9, 9).map(float)
some_numbers = st.lists(numbers, min_size=1, max_size=3)
over_http = st.booleans()


@dataclasses.dataclass
class ModelStream:
    """A stream as it must be stored. The answer of a step that was made without an answer is None."""

    policy: str
    file: str
    x0: float
    contexts: list[float] = dataclasses.field(default_factory=list)
    answers: list[str | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Backup:
    """The model at some time; the rows of all tables and, of a SQLite file, a copy."""

    model: dict[str, ModelStream]
    policies: dict[str, str]
    rows: dict[str, list[dict[str, Any]]]
    sequence: int | None
    file: Path | None


class Database:
    """The database of a machine, accessed without the service."""

    def __init__(self, url: str, path: Path | None):
        self.url, self.path = url, path
        self._engine = sa.create_engine(url, poolclass=NullPool)

    def clear(self) -> None:
        """Forget everything, as if the database were new."""
        if self.path is not None:
            self.remove_file()
        else:
            with self._engine.begin() as connection:
                queries.tables.drop_all(connection)

    def remove_file(self) -> None:
        assert self.path is not None
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def list_steps(self) -> dict[str, list[dict[str, Any]]]:
        """Return the steps of each stream in the order of their numbers, and the last answer as `last` of the last one."""
        found: dict[str, list[dict[str, Any]]] = {}
        with self._engine.begin() as connection:
            for key, name, count, last in connection.execute(
                sa.select(*(queries.streams.c[column] for column in ("key", "id", "steps", "last")))
            ).all():
                query = sa.select(queries.steps).where(queries.steps.c.stream == key).order_by(queries.steps.c.step)
                found[name] = [dict(row._mapping) for row in connection.execute(query)]
                assert len(found[name]) == count
                if count:
                    found[name][-1]["last"] = last
        return found

    def back_up(self, model: dict[str, ModelStream], policies: dict[str, str], number: int) -> Backup:
        with self._engine.begin() as connection:
            rows = {
                table.name: [dict(row._mapping) for row in connection.execute(sa.select(table))]
                for table in queries.tables.sorted_tables
            }
            query = (
                "SELECT last_value FROM streams_key_seq"
                if self.path is None
                else "SELECT max(seq) FROM sqlite_sequence"
            )
            sequence = connection.scalar(sa.text(query))
        file = None
        if self.path is not None:
            file = self.path.with_name(f"backup-{number}.db")
            file.unlink(missing_ok=True)
            source, target = sqlite3.connect(self.path), sqlite3.connect(file)
            source.backup(target)
            source.close()
            target.close()
        return Backup(copy.deepcopy(model), dict(policies), rows, sequence, file)

    def restore(self, backup: Backup) -> None:
        """Return all tables to a backup, and the next key of a stream as well, while services have connections."""
        with self._engine.begin() as connection:
            for table in reversed(queries.tables.sorted_tables):
                connection.execute(sa.delete(table))
            for table in queries.tables.sorted_tables:
                if backup.rows[table.name]:
                    connection.execute(sa.insert(table), backup.rows[table.name])
            if self.path is None:
                reset = sa.text("SELECT setval('streams_key_seq', :value, :used)")
                connection.execute(reset, {"value": backup.sequence, "used": bool(backup.rows["streams"])})
            else:
                connection.execute(sa.text("UPDATE sqlite_sequence SET seq = :value"), {"value": backup.sequence or 0})

    def hold_lock(self, stream: str) -> sa.Connection:
        """Return a connection with an open transaction that locks a stream; in SQLite, the whole file."""
        connection = self._engine.connect()
        if self.path is None:
            query = sa.select(queries.streams.c.key).where(queries.streams.c.id == stream)
            connection.execute(query.with_for_update())
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return connection


class CommitFault:
    """Let one commit of steps fail: after it was applied, or before."""

    def __init__(self, store: Store, applied: bool):
        self._engine, self._applied = store._writer, applied
        self._writes_steps = False
        self._commit = self._engine.dialect.do_commit

    def __enter__(self):
        event.listen(self._engine, "before_cursor_execute", self._see)
        self._engine.dialect.do_commit = self._fail_once

    def __exit__(self, *_):
        event.remove(self._engine, "before_cursor_execute", self._see)
        self._engine.dialect.do_commit = self._commit

    def _see(self, _connection, _cursor, statement, *_):
        self._writes_steps |= "INTO steps" in statement

    def _fail_once(self, connection):
        if not self._writes_steps:
            return self._commit(connection)
        self._engine.dialect.do_commit = self._commit
        if self._applied:
            self._commit(connection)
        if isinstance(connection.driver_connection, sqlite3.Connection):
            raise sqlite3.OperationalError("disk I/O error")
        connection.driver_connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


class ServiceMachine(RuleBasedStateMachine):
    """Rules for both databases. A subclass has the database, the policy files and the reference."""

    database: Database
    apps: list[FastAPI]  # of two services; each restarts under its application, which takes long to make
    files: dict[str, bytes]
    check_promise: Callable[[float, list[float], list[float], float], None]
    find_reference: Callable[[str, float, tuple[float, ...]], tuple[bytes, dict[str, Any]]]
    rules_run = 0
    backups = Bundle("backups")

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database.clear()
        self.model: dict[str, ModelStream] = {}
        self.policies = {"small": "small"}  # the file of each name
        self.backups_made = 0
        self.crashed: list[Service] = []
        self.pending: dict[str, tuple[Future, float]] = {}  # sent while a peer held a lock
        self.peer: sa.Connection | None = None
        self.locked: str | None = None
        for app in self.apps:
            self.start(app.state.service)
        self.steps_made = sum(map(self.count_steps, self.apps))

    def teardown(self):
        if self.peer is not None:
            self.peer.close()
        close_all([*(app.state.service for app in self.apps), *self.crashed])
        self.loop.close()

    # Requests

    def start(self, service: Service) -> None:
        """Start a service anew, and wait until it is ready."""
        service.__init__(Store(self.database.url), *service.callbacks)
        service.add_policies({"small": self.files["small"]})
        service.warm_up()
        assert service.list_failures() == []

    def request(self, service: int, method: str, path: str, **body) -> httpx2.Response:
        async def send():
            transport = httpx2.ASGITransport(self.apps[service], raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await asyncio.wait_for(client.request(method, path, **body), _WAIT)

        return self.loop.run_until_complete(send())

    def send(self, service: int, requests: list[StepRequest], http: bool) -> list[tuple[int, str, dict]]:
        """Send steps, all at once; return the status, the JSON text and the parsed JSON of each answer."""
        send = self.send_over_http if http else self.send_in_python
        answers = send(service, requests)
        until = time.monotonic() + _WAIT
        while loading := [index for index, answer in enumerate(answers) if is_loading(*answer)]:
            assert time.monotonic() < until
            for index, answer in zip(loading, send(service, [requests[index] for index in loading]), strict=True):
                answers[index] = answer
        return answers

    def send_over_http(self, service: int, requests: list[StepRequest]) -> list[tuple[int, str, dict]]:
        if len(requests) == 1:
            ((stream, context, number, *_),) = requests
            body = {"context": context, "step": number}
            answer = self.request(service, "POST", f"/streams/{stream}/steps", json=body)
            return [(answer.status_code, answer.text, answer.json())]
        body = {stream: {"context": context, "step": number} for stream, context, number, *_ in requests}
        answer = self.request(service, "POST", "/steps", json=body)
        assert answer.status_code == 200, answer.text
        answered, refused = answer.json()["answered"], answer.json()["refused"]
        return [
            (200, json.dumps(answered[stream], separators=(",", ":")), answered[stream])
            if stream in answered
            else (refused[stream]["status"], "", refused[stream])
            for stream, *_ in requests
        ]

    def send_in_python(self, service: int, requests: list[StepRequest]) -> list[tuple[int, str, dict]]:
        status, results = self.call(self.apps[service].state.service.submit_steps(requests).result, _WAIT)
        if status != 200:
            return [(status, "", results)] * len(requests)
        return [
            (status_of(result), "", error_body(result))
            if isinstance(result, ServiceError)
            else (200, result.json, json.loads(result.json))
            for result in results
        ]

    def call(self, write, *arguments) -> tuple[int, Any]:
        """Return 200 and what a method of the service returns, or the status and the body of its error."""
        try:
            return 200, write(*arguments)
        except ServiceError as error:
            return status_of(error), error_body(error)

    def count_steps(self, app: FastAPI) -> int:
        """Return the steps that a service has counted."""
        text = self.request(self.apps.index(app), "GET", "/metrics").text
        return int(sum(map(float, re.findall(r"^ecl2o_steps_total\{.*\} (.*)$", text, re.MULTILINE))))

    def record(self, stream: str, context: float, answer: str | None) -> None:
        """Add a step to the model."""
        self.model[stream].contexts.append(context)
        self.model[stream].answers.append(answer)
        self.steps_made += 1

    def count(self, stream: str) -> int:
        """Return the number of steps of a stream; 0 if there is none."""
        return len(self.model[stream].contexts) if stream in self.model else 0

    def is_frozen(self) -> bool:
        return self.peer is not None

    # Rules

    def _add_results_to_targets(self, targets, results):
        return super()._add_results_to_targets(targets, results)

    @initialize(target=backups)
    def create_streams(self):
        for stream in _STREAMS:
            self.create(0, stream, "small", 0.0, False)
        return self.back_up()

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, stream=streams, policy=policies, x0=numbers, http=over_http)
    def create(self, service, stream, policy, x0, http):
        if http:
            answer = self.request(service, "PUT", f"/streams/{stream}", json={"policy": policy, "x0": [x0]})
            status, is_new = answer.status_code, answer.status_code == 201
        else:
            status, answer = self.call(self.apps[service].state.service.create_stream, stream, policy, [x0])
            is_new = status == 200 and answer[1]
        if stream in self.model:
            same = (self.model[stream].policy, self.model[stream].x0) == (policy, x0)
            assert (status, is_new) == (200 if same else 409, False)
        elif policy not in self.policies:
            assert status == 422
        else:
            assert is_new, answer if not http else answer.text
            self.model[stream] = ModelStream(policy, self.policies[policy], x0)

    @rule(service=services, stream=streams, contexts=some_numbers, http=over_http)
    def step(self, service, stream, contexts, http):
        self.make_steps(service, stream, contexts, True, http)

    @rule(service=services, stream=streams, contexts=some_numbers, http=over_http)
    def step_without_number(self, service, stream, contexts, http):
        self.make_steps(service, stream, contexts, False, http)

    def make_steps(self, service: int, stream: str, contexts: list[float], numbered: bool, http: bool) -> None:
        for context in contexts:
            number = self.count(stream) + 1 if numbered else None
            if self.is_frozen() and (self.database.path is not None or stream == self.locked):
                self.submit_behind_the_lock(service, stream, context)
                return
            ((status, text, body),) = self.send(service, [StepRequest(stream, [context], number)], http)
            if stream not in self.model:
                assert status == 404
                return
            assert status == 200, body
            self.record(stream, context, text)

    def submit_behind_the_lock(self, service: int, stream: str, context: float) -> None:
        if stream in self.model and stream not in self.pending:
            request = StepRequest(stream, [context], self.count(stream) + 1)
            self.pending[stream] = self.apps[service].state.service.submit_steps([request]), context

    @precondition(lambda self: not self.is_frozen())
    @rule(
        service=services,
        stream=streams,
        offset=st.sampled_from((0, 0, -1, 2, 1000)),
        other=st.none() | numbers,
        http=over_http,
    )
    def send_a_number_that_is_not_next(self, service, stream, offset, other, http):
        last = self.count(stream)
        if last + offset < 1 or stream not in self.model:
            return
        answered = self.model[stream].contexts[-1] if last else 0.0
        context = answered if other is None else other
        ((status, text, body),) = self.send(service, [StepRequest(stream, [context], last + offset)], http)
        if offset:
            assert (status, body["last_step"], body["next_step"]) == (409, last, last + 1)
        elif context == answered:
            assert status == 200, body
            assert self.model[stream].answers[-1] in (None, text)
            self.model[stream].answers[-1] = text
        else:
            assert (status, body["context_answered"], body["context_sent"]) == (409, [answered], [context])

    @precondition(lambda self: not self.is_frozen())
    @rule(
        service=services,
        kinds=st.fixed_dictionaries(dict.fromkeys(_STREAMS, st.sampled_from(("next", "unnumbered", "gap", "long")))),
        context=numbers,
        http=over_http,
    )
    def batch(self, service, kinds, context, http):
        requests = [StepRequest("missing", [context], 1)]
        for stream, kind in kinds.items():
            last = self.count(stream)
            number = {"next": last + 1, "gap": last + 2}.get(kind)
            requests.append(StepRequest(stream, [context] * (2 if kind == "long" else 1), number))
        missing, *answers = self.send(service, requests, http)
        assert missing[0] == 404
        for (stream, kind), (status, text, body) in zip(kinds.items(), answers, strict=True):
            if stream not in self.model:
                assert status == 404
            else:
                assert status == {"gap": 409, "long": 422}.get(kind, 200), body
                if status == 200:
                    self.record(stream, context, text)

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, stream=streams, again=st.none() | numbers, http=over_http)
    def delete(self, service, stream, again, http):
        """Delete a stream, and perhaps create another one under its id."""
        if http:
            status = self.request(service, "DELETE", f"/streams/{stream}").status_code
        else:
            status, _ = self.call(self.apps[service].state.service.delete_stream, stream)
        assert status in ((200, 204) if stream in self.model else (404,))
        self.model.pop(stream, None)
        if again is not None:
            self.create(service, stream, "small", again, http)

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, name=policies, file=policies, cut=st.booleans())
    def upload(self, service, name, file, cut):
        content = self.files[file][:-1] if cut else self.files[file]
        status = self.request(service, "PUT", f"/policies/{name}", content=content).status_code
        if cut:
            assert status == 422
        else:
            assert status == {file: 200, None: 201}.get(self.policies.get(name), 409)
            self.policies.setdefault(name, file)

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, stream=streams)
    def read(self, service, stream):
        """Read a stream; compare what the services have counted, all together, with the steps that were stored."""
        answer = self.request(service, "GET", f"/streams/{stream}")
        if stream in self.model:
            steps = self.request(service, "GET", f"/streams/{stream}/steps").json()
            assert answer.json()["steps"] == self.count(stream)
            assert [step["context"][0] for step in steps] == self.model[stream].contexts
            action = self.request(service, "GET", f"/streams/{stream}/action").json()
            last = steps[-1]["action"] if steps else [self.model[stream].x0]
            assert action == {"step": self.count(stream), "action": last}
        else:
            assert answer.status_code == 404
        until = time.monotonic() + _WAIT
        while (counted := sum(map(self.count_steps, self.apps))) != self.steps_made:
            assert time.monotonic() < until, (counted, self.steps_made)  # a step in doubt is looked up soon

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, crash=st.booleans())
    def restart(self, service, crash):
        """Start a service anew; one that crashed is left as it was."""
        found = self.apps[service].state.service
        if crash:
            self.crashed.append(copy.copy(found))
            if len(self.crashed) > 3:  # each has connections
                self.crashed.pop(0).close()
        else:
            found.close()
        self.start(found)

    @precondition(lambda self: not self.is_frozen())
    @rule(stream=streams)
    def freeze(self, stream):
        """A peer stops in the middle of a transaction."""
        if stream in self.model:  # else there is nothing to lock
            self.peer, self.locked = self.database.hold_lock(stream), stream

    @precondition(lambda self: self.is_frozen())
    @rule(service=services)
    def thaw(self, service):
        assert self.peer is not None
        self.peer.rollback()
        self.peer.close()
        self.peer = self.locked = None
        for stream, (future, context) in self.pending.items():
            status, results = self.call(future.result, _WAIT)
            result = results[0] if status == 200 else None
            if result is None or isinstance(result, ServiceError):
                assert status == 503 or status_of(result) == 503
                text = self.send_until_answered(service, StepRequest(stream, [context], self.count(stream) + 1))
            else:
                text = result.json
            self.record(stream, context, text)
        self.pending.clear()

    def send_until_answered(self, service: int, request: StepRequest) -> str:
        until = time.monotonic() + _WAIT
        while True:
            ((status, text, body),) = self.send(service, [request], False)
            if status == 200:
                return text
            assert status == 503, body
            assert time.monotonic() < until, body
            time.sleep(0.02)

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, stream=streams, context=numbers, applied=st.booleans(), other=numbers, http=over_http)
    def fail_to_commit(self, service, stream, context, applied, other, http):
        """The commit of a step fails, perhaps after it was applied; the client sends the step again, or another context."""
        if stream in self.model:
            self.fail_to_commit_a_step(service, stream, context, applied, other, http)
            if self.database.path is not None:  # a service that recovers may write to the file, and the other one stops
                self.restart(1 - service, False)

    def fail_to_commit_a_step(
        self, service: int, stream: str, context: float, applied: bool, other: float, http: bool
    ) -> None:
        request = StepRequest(stream, [context], self.count(stream) + 1)
        with CommitFault(self.apps[service].state.service.store, applied):
            ((status, text, body),) = self.send(service, [request], http)
        if status == 200:
            self.record(stream, context, text)
            return
        assert status == 503, body
        if applied:
            assert "othing was changed" not in body["detail"]
            self.record(stream, context, None)
        ((status, text, body),) = self.send(service, [request._replace(context=[other])], http)
        if not applied:
            assert status == 200, body
            self.record(stream, other, text)
        elif other == context:
            assert status == 200, body
            self.model[stream].answers[-1] = text
        else:
            assert (status, body["context_answered"]) == (409, [context])

    @precondition(lambda self: not self.is_frozen())
    @rule(target=backups)
    def back_up(self):
        self.backups_made += 1
        return self.database.back_up(self.model, self.policies, self.backups_made)

    @precondition(lambda self: not self.is_frozen())
    @rule(backup=backups)
    def restore(self, backup):
        """The database returns to an earlier time. The services have later states in memory."""
        self.database.restore(backup)
        self.model, self.policies = copy.deepcopy(backup.model), dict(backup.policies)

    @precondition(lambda self: not self.is_frozen())
    @rule(service=services, stream=streams, contexts=some_numbers, instead=numbers, http=over_http)
    def lose_steps(self, service, stream, contexts, instead, http):
        """The database loses the last steps; the other service makes as many with another context."""
        before = self.back_up()
        self.make_steps(service, stream, contexts, True, http)
        self.restore(before)
        self.make_steps(1 - service, stream, [instead] * len(contexts), True, http)

    @precondition(lambda self: not self.is_frozen() and self.database.path is not None)
    @rule(backup=backups, damage=st.sampled_from(("delete", "replace", "truncate", "take the log")), context=numbers)
    def lose_the_file(self, backup, damage, context):
        """The file of running services is damaged; they refuse to go on. It is restored as documented."""
        path = self.database.path
        assert path is not None
        spare = path.with_name("spare.db")
        shutil.copy(backup.file, spare)
        if damage == "delete":
            path.unlink()
        elif damage == "replace":
            os.replace(spare, path)
        elif damage == "truncate":
            os.truncate(path, 4096)
        else:
            Path(f"{path}-wal").unlink(missing_ok=True)
        for service, stream in ((service, stream) for service in (0, 1) for stream in self.model):
            ((status, _, body),) = self.send(service, [StepRequest(stream, [context])], True)
            assert status == 503, body
            assert self.request(service, "GET", "/readyz").status_code == 503
        close_all([*(app.state.service for app in self.apps), *self.crashed])
        self.crashed.clear()
        self.database.remove_file()
        shutil.copy(backup.file, path)
        self.model, self.policies = copy.deepcopy(backup.model), dict(backup.policies)
        for app in self.apps:
            self.start(app.state.service)

    # What holds after each rule

    @invariant()
    def the_store_is_as_answered(self):
        type(self).rules_run += 1
        stored = self.database.list_steps()
        assert set(stored) == set(self.model)
        for name, stream in self.model.items():
            steps = stored[name]
            assert [step["step"] for step in steps] == list(range(1, len(stream.contexts) + 1))
            assert [json.loads(step["context"]) for step in steps] == [[context] for context in stream.contexts]
            for step, answer in zip(steps, stream.answers, strict=True):
                if answer is not None:
                    assert all(_as_stored(value) == step[field] for field, value in json.loads(answer).items())
            if steps and stream.answers[-1] is not None:
                assert steps[-1]["last"] == stream.answers[-1]
            times = [step["at"] for step in steps]
            assert times == sorted(times)
            for end, step in enumerate(steps, 1):
                _, expected = self.find_reference(stream.file, stream.x0, tuple(stream.contexts[:end]))
                assert {field: step[field] for field in expected} == expected
            actions = [json.loads(step["action"])[0] for step in steps]
            self.check_promise(stream.x0, stream.contexts, actions, _RATIOS[stream.file])


def is_loading(status: int, _text: str, body: dict[str, Any]) -> bool:
    """Return whether a step was refused because its policy is being compiled."""
    return status == 503 and "in a moment" in body["detail"]


def close_all(services: list[Service]) -> None:
    with ThreadPoolExecutor(len(services)) as threads:
        list(threads.map(Service.close, services))


def _as_stored(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value


@pytest.fixture(scope="module", autouse=True)
def shared_policies():
    """Read and trace each policy file once for all services."""
    read, traced = functools.cache(read_policy), {}

    def check_program(policy):
        if id(policy) not in traced:
            traced[id(policy)] = policy, policy_registry.check_program(policy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_registry, "read_policy", read)
        patch.setattr(service_module, "read_policy", read)
        patch.setattr(service_module, "check_program", check_program, raising=False)
        yield


class RestartedService(Service):
    """A service that knows how to start anew."""

    def __init__(self, store: Store, *callbacks: Callable):
        super().__init__(store, *callbacks)
        self.callbacks = callbacks


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """Two applications; their services are closed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "Service", RestartedService)
        store = f"sqlite:///{tmp_path_factory.mktemp('first') / 'streams.db'}"
        apps = [app_module.make_app(Store(store)) for _ in range(2)]
    close_all([app.state.service for app in apps])
    return apps


@pytest.fixture(scope="module")
def files(tmp_path_factory, policy_bytes) -> dict[str, bytes]:
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=_ALPHA, dim=1))
    path = tmp_path_factory.mktemp("policy") / "other"
    ec.save(path, ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=_RATIOS["other"]), problem))
    return {"small": policy_bytes, "other": path.read_bytes()}


def run_machine(
    database: Database, apps: list[FastAPI], files: dict[str, bytes], check_promise: Callable, examples: int
) -> None:
    """Run so many stories."""
    steppers = {name: policy_registry.BatchedStepper(read_policy(name, files[name]).policy, 1, 1, 0) for name in files}

    @functools.cache
    def find_reference(policy: str, x0: float, contexts: tuple[float, ...]) -> tuple[bytes, dict[str, Any]]:
        if not contexts:
            return steppers[policy].start(np.array([x0]), np.zeros((0, 1))), {}
        before, _ = find_reference(policy, x0, contexts[:-1])
        (outcome,) = steppers[policy].step([before], [[contexts[-1]]])
        assert outcome.fields is not None
        return outcome.state, {field: _as_stored(value) for field, value in outcome.fields.items()}

    class Machine(ServiceMachine):
        pass

    Machine.database, Machine.apps, Machine.files = database, apps, files
    Machine.find_reference, Machine.check_promise = staticmethod(find_reference), staticmethod(check_promise)
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=25))
    assert Machine.rules_run >= 12 * examples


@pytest.fixture
def endless_log():
    """Let SQLite leave its log alone: a service stops when another one has written to the database file, as it should."""

    def configure(connection, _record):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA wal_autocheckpoint=0")

    event.listen(sa.Engine, "connect", configure)
    yield
    event.remove(sa.Engine, "connect", configure)


@pytest.mark.usefixtures("endless_log")
def test_stories_on_sqlite(tmp_path, apps, files, check_promise):
    path = tmp_path / "streams.db"
    run_machine(Database(f"sqlite:///{path}", path), apps, files, check_promise, examples=20)


@pytest.mark.integration
def test_stories_on_postgresql(apps, files, check_promise, postgresql, monkeypatch):
    monkeypatch.setattr(pg_notify, "_POLL_SECONDS", 0.02)  # that closing a service takes
    with sa.create_engine(postgresql, isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(sa.text("CREATE DATABASE stories"))
    database = Database(postgresql.replace("/postgres", "/stories"), None)
    run_machine(database, apps, files, check_promise, examples=10)
