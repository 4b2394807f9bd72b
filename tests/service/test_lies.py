"""The database lies: it returns to an earlier state, is replaced, does not answer, or breaks a connection during a commit."""

import dataclasses

import pytest
import sqlalchemy as sa

from ecl2o.exceptions import InvalidRequestError, LoadingError, UnavailableError
from ecl2o.service import Service, Store
from ecl2o.service.models import StepRecord, StepRequest


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def store_url(request, tmp_path) -> str:
    return (
        f"sqlite:///{tmp_path / 'streams.db'}" if request.param == "sqlite" else request.getfixturevalue("postgresql")
    )


@pytest.fixture
def open_service(policy_bytes):
    """`open_service(url)` gives a service with the policy `small`; all are closed after the test."""
    services = []

    def open_service(url: str) -> Service:
        services.append(Service(Store(url)))
        services[-1].put_policy("small", policy_bytes)
        return services[-1]

    yield open_service
    for service in services:
        service.close()


@pytest.fixture
def admin(store_url):
    """Another program's engine on the same database."""
    engine = sa.create_engine(store_url)
    yield engine
    engine.dispose()


def run_step(service: Service, stream: str, number: int, context: float) -> StepRecord:
    (result,) = service.submit_steps([StepRequest(stream, [context], number)]).result(30)
    if isinstance(result, LoadingError):  # another service has created the stream
        result.ready.result(30)
        return run_step(service, stream, number, context)
    if isinstance(result, Exception):
        raise result
    return result.record


def without_time(records: list[StepRecord]) -> list[StepRecord]:
    return [dataclasses.replace(record, at=0.0) for record in records]


# A database that returns to an earlier state


def test_a_state_of_a_lost_history_is_not_used(store_url, admin, open_service):
    """Another service has continued a restored database: the number of steps fits, the state does not."""
    first, second = open_service(store_url), open_service(store_url)
    for stream in ("lost", "true"):
        first.create_stream(stream, "small", [0.0])
    for number in range(1, 6):
        for stream in ("lost", "true"):
            run_step(first, stream, number, float(number % 3))
    with admin.begin() as connection:
        backup = connection.execute(sa.text("SELECT * FROM streams WHERE id = 'lost'")).mappings().one()
    for number in range(6, 11):
        run_step(first, "lost", number, 30.0)
    with admin.begin() as connection:  # restore the backup
        connection.execute(sa.text("DELETE FROM steps WHERE stream = :key AND step > 5"), dict(backup))
        columns = ", ".join(f"{name} = :{name}" for name in backup)
        connection.execute(sa.text(f"UPDATE streams SET {columns} WHERE key = :key"), dict(backup))
    for number in range(6, 11):
        for stream in ("lost", "true"):
            run_step(second, stream, number, 5.0 * (number % 2))
    records = [run_step(first, stream, 11, 4.0) for stream in ("lost", "true")]
    assert without_time(records[:1]) == without_time(records[1:])
    assert without_time(first.list_steps("lost")) == without_time(first.list_steps("true"))


def test_a_damaged_state_stops_only_its_own_stream(store_url, admin, open_service):
    service = open_service(store_url)
    for stream in ("sound", "damaged"):
        service.create_stream(stream, "small", [0.0])
    with admin.begin() as connection:
        other = connection.scalar(sa.text("SELECT state FROM streams WHERE id = 'damaged'"))
        damaged = bytes(other[:-1]) + bytes([other[-1] ^ 1])
        connection.execute(sa.text("UPDATE streams SET state = :state WHERE id = 'damaged'"), {"state": damaged})
    sound, refused = service.submit_steps([StepRequest("sound", [1.0]), StepRequest("damaged", [1.0])]).result(30)
    assert sound.record.step == 1
    assert isinstance(refused, UnavailableError)
    assert service.get_stream("damaged").steps == 0


# The limit on history lengths


def test_the_limit_on_history_lengths_is_the_stores(store_url, policy_bytes, open_service, monkeypatch):
    """Lengths are counted in the store: deleted ones and those of other services too; existing ones are always loaded."""
    monkeypatch.setattr("ecl2o.service.queries._MAX_HISTORY_LENGTHS", 2)
    first, second = open_service(store_url), open_service(store_url)
    for service in (first, second):
        service.put_policy("limited", policy_bytes)
    first.create_stream("length-0", "limited", [0.0])
    second.create_stream("length-1", "limited", [0.0], [[1.0]])
    for service in (first, second):
        with pytest.raises(InvalidRequestError, match="0, 1"):
            service.create_stream("length-2", "limited", [0.0], [[1.0], [1.0]])
    second.delete_stream("length-0")
    second.create_stream("length-2", "limited", [0.0], [[1.0], [1.0]])
    monkeypatch.setattr("ecl2o.service.queries._MAX_HISTORY_LENGTHS", 1)
    for stream in ("length-1", "length-2"):
        assert run_step(first, stream, 1, 2.0).step == 1
    first.create_stream("length-1-again", "limited", [0.0], [[3.0]])
