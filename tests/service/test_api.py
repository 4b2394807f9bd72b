"""The HTTP API over a real connection: statuses, fields, events, metrics, tokens."""

import csv
import dataclasses
import io
import json
import math
import re
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

import ecl2o as ec
from ecl2o.exceptions import ConflictError
from ecl2o.policy import Contract
from ecl2o.service import Client
from ecl2o.service.http import Access, middleware
from ecl2o.service.models import StepRecord


def step(url, stream, context, number=None):
    asked = {"context": context} if number is None else {"context": context, "step": number}
    return httpx2.post(f"{url}/streams/{stream}/steps", json=asked, timeout=60)


def test_policies_are_uploaded_and_described(url, policy_bytes):
    assert httpx2.put(f"{url}/policies/other", content=policy_bytes).status_code == 201
    assert httpx2.put(f"{url}/policies/other", content=policy_bytes).status_code == 200
    damaged = httpx2.put(f"{url}/policies/third", content=policy_bytes[:-5])
    assert damaged.status_code == 422
    about = httpx2.get(f"{url}/policies/small").json()
    assert about["agent"] == "Competitive(HittingMinimizer)"
    assert (about["promise"]["ratio"], about["promise"]["period"]) == (1.6, None)
    assert [policy["name"] for policy in httpx2.get(f"{url}/policies").json()] == ["other", "small"]
    assert httpx2.get(f"{url}/policies/none").status_code == 404


def test_a_policy_that_needs_too_much_memory_is_rejected(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    profile = ec.forecasters.RollingProfile(days=1000, period=100_000)
    ec.save(tmp_path / "huge", ec.Policy(ec.RHC(3, truncate=False), problem, profile))
    answer = httpx2.put(f"{url}/policies/huge", content=(tmp_path / "huge").read_bytes())
    assert answer.status_code == 422
    assert "764 MiB" in answer.json()["detail"]
    assert "32 MiB" in answer.json()["detail"]
    assert httpx2.get(f"{url}/policies/huge").status_code == 404


def test_a_step_its_repetition_and_invalid_requests(url):
    first = step(url, "a", [1.5], 1)
    assert first.status_code == 200
    assert list(first.json()) == [field.name for field in dataclasses.fields(StepRecord)]
    assert step(url, "a", 1.5, 1).content == first.content
    other = step(url, "a", [2.0], 1)
    assert (other.status_code, other.json()["context_answered"], other.json()["context_sent"]) == (409, [1.5], [2.0])
    assert step(url, "a", [2.0], 3).status_code == 409
    for bad in ([1.0, 2.0], [], ["x"], "x", None, [[1.0]], [True], True, ["18"], "18"):
        assert step(url, "a", bad).status_code == 422
    assert httpx2.post(f"{url}/steps", json={"a": True}).status_code == 422
    for raw in (b'{"context": [NaN]}', b'{"context": [1e999]}', b"{", b"[]", b"\xff"):
        answer = httpx2.post(f"{url}/streams/a/steps", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        json.loads(answer.content, parse_constant=pytest.fail)  # the answer itself is valid JSON
    assert step(url, "none", [1.0]).status_code == 404
    assert httpx2.get(f"{url}/streams/a/action").json() == {"step": 1, "action": first.json()["action"]}


def test_keda_reads_the_action_where_the_manifest_says(url):
    """KEDA's metrics-api reads `valueLocation`, a GJSON path, at `url`; for AverageValue, HPA runs ceil(value / target)."""
    guide = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    manifest = guide.split("kind: ScaledObject")[1].split("```")[0]
    named = dict(re.findall(r'^ *(?:- )?(\w+): "?([^"\n]+?)"?$', manifest, re.MULTILINE))
    assert (named["type"], named["metricType"]) == ("metrics-api", "AverageValue")
    address = urlsplit(named["url"]).path
    stream = address.split("/")[2]
    httpx2.put(f"{url}/streams/{stream}", json={"policy": "small", "x0": [4.0]}, timeout=60).raise_for_status()
    action = step(url, stream, [9.3]).json()["action"][0]
    found = httpx2.get(url + address).json()
    for key in named["valueLocation"].split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    assert found == action
    assert math.ceil(found / float(named["targetValue"])) == math.ceil(action) > 4


def test_the_short_way_of_a_step_answers_as_the_documented_one(url):
    """Steps of the plain content type pass by FastAPI; with a parameter they do not."""
    httpx2.put(f"{url}/streams/twice", json={"policy": "small", "x0": [0.0]}, timeout=60).raise_for_status()
    first = step(url, "twice", [1.5], 1).json()
    for stream, body in (
        ("twice", '{"context": [1.5], "step": 1}'),
        ("twice", '{"context": 1.5, "step": 1}'),
        ("twice", '{"context": [2.5], "step": 1}'),
        ("twice", '{"context": [2.5], "step": 7}'),
        ("twice", '{"context": [2.5, 1.0]}'),
        ("twice", '{"context": [null]}'),
        ("twice", '{"context": "1"}'),
        ("twice", '{"context": [1.5], "step": "1"}'),
        ("twice", '{"context": [NaN], "step": 1}'),
        ("twice", "[]"),
        ("twice", ""),
        ("none", '{"context": [1.5]}'),
        ("-", '{"context": [1.5]}'),
        ("x" * 129, '{"context": [1.5]}'),
    ):
        answers = [
            httpx2.post(f"{url}/streams/{stream}/steps", content=body, headers={"content-type": content_type})
            for content_type in ("application/json", "application/json; charset=utf-8")
        ]
        assert answers[0].json() == answers[1].json()
        assert answers[0].status_code == answers[1].status_code
        assert {name for name in answers[0].headers if name != "date"} == {n for n in answers[1].headers if n != "date"}
    assert httpx2.get(f"{url}/streams/twice/steps").json() == [first]


def test_a_stream_that_could_not_compute_costs_is_rejected(url):
    for body, named in (
        ({"x0": [1e308]}, ("x0", "1e+308", "1e+100")),
        ({"x0": ["1"]}, ("x0",)),
        ({"x0": [True]}, ("x0",)),
        ({"x0": [0], "history": [[-1e200]]}, ("history", "1e+200")),
    ):
        answer = httpx2.put(f"{url}/streams/far", json={"policy": "small", **body})
        assert answer.status_code == 422
        assert all(text in answer.json()["detail"] for text in named)
    assert httpx2.get(f"{url}/streams/far").status_code == 404


def test_a_step_without_guarantee_is_flagged_and_counted(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    guard = ec.Competitive(ec.HittingMinimizer(), ratio=1.8, contexts=(-1.0, 1.0))
    ec.save(tmp_path / "guard", ec.Policy(guard, problem))
    with Client(url) as client:
        client.put_policy("bounded", tmp_path / "guard")
        client.put_stream("lost", "bounded", [0.0])
    answers = [step(url, "lost", [context]).json() for context in (0, 0.5, 50.0)]  # an integer is a number
    assert [answer["unconverged"] for answer in answers] == [False, False, True]
    assert httpx2.get(f"{url}/streams/lost/steps").json() == answers
    assert 'ecl2o_unconverged_steps_total{policy="bounded"} 1.0' in httpx2.get(f"{url}/metrics").text


def test_many_streams_in_one_request_fail_one_by_one(url):
    asked = {"b": {"context": [1.0], "step": 1}, "none": [1.0], "a": [1.0, 2.0]}
    answer = httpx2.post(f"{url}/steps", json=asked).json()
    assert set(answer["answered"]) == {"b"}
    assert {stream: why["status"] for stream, why in answer["refused"].items()} == {"none": 404, "a": 422}


def test_steps_as_csv_have_a_column_for_each_number(url):
    text = httpx2.get(f"{url}/streams/b/steps", headers={"accept": "text/csv"}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    found = httpx2.get(f"{url}/streams/b/steps?after=0").json()
    assert [float(row["action_0"]) for row in rows] == [step["action"][0] for step in found]
    assert httpx2.get(f"{url}/streams/b/steps?after=1").json() == []


def test_events_announce_steps(url):
    heard, connected = [], threading.Event()

    def listen():
        with httpx2.stream("GET", f"{url}/events?stream=b", timeout=60) as events:
            for line in events.iter_lines():
                connected.set()
                if line.startswith("data:"):
                    heard.extend(json.loads(line[5:]))
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert connected.wait(30)
    answer = step(url, "b", [2.0]).json()
    thread.join(30)
    assert heard == [{"stream": "b", **answer}]


def test_metrics_have_steps_errors_and_promises(url):
    text = httpx2.get(f"{url}/metrics").text
    for name in (
        "steps_total",
        "refusals_total",
        "step_seconds_bucket",
        "live_ratio_max",
        "promise_spent_max",
        "promise_ratio",
        "ready 1.0",
    ):
        assert f"ecl2o_{name}" in text
    assert httpx2.get(f"{url}/readyz").json() == {"ready": True, "reasons": []}


def test_the_client_counts_and_retries(url):
    with Client(url) as client:
        client.put_stream("counted", "small", [0.0])
        first = client.step("counted", [1.0])
        assert client.put_stream("counted", "small", [0.0]).steps == 1
        assert client.steps({"counted": [2.0]})["counted"].step == 2
        assert [s.step for s in client.list_steps("counted")] == [1, 2]
        assert client.list_steps("counted")[0] == first
        with pytest.raises(ConflictError):
            client.put_stream("counted", "small", [1.0])
    with Client("http://127.0.0.1:9", patience=0.2) as unanswered, pytest.raises(TimeoutError):
        unanswered.action("counted")


def test_requests_without_the_right_token_are_denied(guarded_url):
    def send(method, path, token=None, **more):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx2.request(method, guarded_url + path, headers=headers | more.pop("headers", {}), **more)

    made = {"policy": "small", "x0": [0.0]}
    assert send("GET", "/streams").status_code == 401
    assert send("GET", "/streams", "wrong").status_code == 401
    assert httpx2.get(guarded_url + "/streams", headers={"authorization": b"Bearer s\xe9cret"}).status_code == 401
    assert send("GET", "/streams", "reading").status_code == 200
    assert send("PUT", "/streams/x", "reading", json=made).status_code == 403
    assert send("PUT", "/streams/x", "secret", json=made, timeout=60).status_code == 201
    assert send("GET", "/healthz").status_code == 200
    page = send("GET", "/", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert send("POST", "/login", data={"token": "wrong"}).status_code == 401
    with httpx2.Client(base_url=guarded_url) as browser:
        assert browser.post("/login", data={"token": "reading"}).status_code == 303
        assert browser.get("/").status_code == 200
        assert browser.delete("/streams/x").status_code == 403
    assert "httponly" in send("POST", "/login", data={"token": "reading"}).headers["set-cookie"].lower()


def test_requests_from_other_sites_and_to_other_hosts_are_denied(url):
    cross = {"sec-fetch-site": "cross-site"}
    assert httpx2.post(f"{url}/steps", json={}, headers=cross).status_code == 403
    assert httpx2.get(f"{url}/streams", headers={"host": "evil.example"}).status_code == 403
    headers = httpx2.get(url).headers
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


_FLAGS = ("httponly", "samesite=strict", "secure")


def test_a_session_is_not_the_token_and_only_reads(guarded_url, monkeypatch):
    name = f"ecl2o_session_{urlsplit(guarded_url).port}"  # a browser sends cookies to all ports of a host
    with httpx2.Client(base_url=guarded_url) as browser:
        assert browser.post("/login", data={"token": "secret"}).status_code == 303
        session = browser.cookies[name]
        assert len(session) >= 43
        assert "secret" not in session
        assert browser.get("/streams").status_code == 200
        for method, path in (("DELETE", "/streams/x"), ("PUT", "/policies/x"), ("POST", "/steps")):
            assert browser.request(method, path).status_code == 403
        assert browser.get("/login").text.count("Sign out") == 1
        behind_tls = browser.post("/login", data={"token": "secret"}, headers={"x-forwarded-proto": "https"})
        assert [";" + flag in behind_tls.headers["set-cookie"].lower().replace(" ", "") for flag in _FLAGS] == [
            True
        ] * 3
        session = behind_tls.headers["set-cookie"].split(";")[0].removeprefix(f"{name}=")
    for cookie, value in ((name, session + "x"), (name, "secret"), (name, ""), ("ecl2o_read", "secret")):
        assert httpx2.get(f"{guarded_url}/streams", headers={"cookie": f"{cookie}={value}"}).status_code == 401
    as_token = {"authorization": f"Bearer {session}"}
    assert httpx2.get(f"{guarded_url}/streams", headers=as_token).status_code == 401

    def reads(session: str) -> bool:
        return httpx2.get(f"{guarded_url}/streams", headers={"cookie": f"{name}={session}"}).status_code == 200

    def sign_in() -> str:
        answer = httpx2.post(f"{guarded_url}/login", data={"token": "reading"})
        return answer.headers["set-cookie"].split(";")[0].removeprefix(f"{name}=")

    assert reads(session)
    httpx2.post(f"{guarded_url}/login", headers={"cookie": f"{name}={session}"})  # the form to sign out
    assert not reads(session)
    monkeypatch.setattr(middleware, "_MAX_SESSIONS", 2)
    sessions = [sign_in() for _ in range(3)]
    assert [reads(one) for one in sessions] == [False, True, True]
    monkeypatch.setattr(middleware, "_SESSION_SECONDS", -1)  # expired
    assert not reads(sign_in())


def test_a_login_is_short(guarded_url):
    assert httpx2.post(f"{guarded_url}/login", content=b"token=" + b"x" * 5000).status_code == 413
    assert httpx2.post(f"{guarded_url}/login", content=iter([b"x" * 3000] * 2)).status_code == 413


@pytest.mark.parametrize(
    ("access", "named"),
    [
        ({}, "ECL2O_TOKEN"),
        ({"read_token": "x" * 16}, "ECL2O_TOKEN"),
        ({"token": "x" * 15}, "ECL2O_TOKEN has 15"),
        ({"token": "x" * 16, "read_token": "reading"}, "ECL2O_READ_TOKEN has 7"),
    ],
)
def test_a_service_for_other_machines_needs_long_tokens(access, named):
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        with pytest.raises(ValueError, match=named):
            Access(**access).check_host(host)
    for host in ("127.0.0.1", "::1", "localhost"):
        Access(**access).check_host(host)
    Access("x" * 16, "y" * 16).check_host("0.0.0.0")


@pytest.mark.parametrize("token", ["s\xe9cret", "pass\u2014word", "line\n", " padded", "tab\tbed"])
def test_tokens_that_no_header_can_carry_are_rejected_at_the_start(token):
    with pytest.raises(ValueError, match="ECL2O_TOKEN") as caught:
        Access(token)
    assert token not in str(caught.value)
    with pytest.raises(ValueError, match="ECL2O_READ_TOKEN"):
        Access("secret", token)


def test_implausible_and_missing_readings_are_replaced_flagged_and_counted(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    contract = Contract(context_dim=1, plausible=[(0.0, 10.0)], stuck_after=[2.0], accepted_after=9)
    ec.save(tmp_path / "site", ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.7), problem, contract=contract))
    with Client(url) as client:
        client.put_policy("screened", tmp_path / "site")
        client.put_stream("s", "screened", [4.0], [[4.0]] * 4)
        answers = [client.step("s", context) for context in ([5.0], [5000.0], [None], [float("nan")], [6.0])]
    assert [answer.screened for answer in answers] == [False, True, True, True, False]
    assert [answer.context for answer in answers] == [[5.0], [5000.0], [None], [None], [6.0]]
    assert [answer.context_used for answer in answers] == [[5.0], [5.0], [5.0], [5.0], [6.0]]
    assert max(answer.live_ratio for answer in answers) <= 1.7 * (1 + 1e-9)
    assert step(url, "s", [6.0], 5).json() == vars(answers[-1])
    assert step(url, "s", [None], 5).status_code == 409
    httpx2.put(f"{url}/streams/new", json={"policy": "screened", "x0": [4.0]}, timeout=60).raise_for_status()
    rejected = step(url, "new", [5000.0])
    assert rejected.status_code == 422
    assert all(text in rejected.json()["detail"] for text in ("5000", "0 to 10"))
    assert "--" not in rejected.json()["detail"]  # no options of the command line
    together = httpx2.post(f"{url}/steps", json={"s": None, "b": [None]}).json()
    assert together["answered"]["s"]["context_used"] == [6.0]
    assert together["refused"]["b"]["status"] == 422
    assert httpx2.get(f"{url}/streams/s/steps?after=0").json()[:5] == [vars(answer) for answer in answers]
    assert len(httpx2.get(f"{url}/streams/s/hindsight").json()["actions"]) == 4
    assert [step(url, "s", [7.0]).json()["stuck"] for _ in range(4)] == [[], [], ["1"], ["1"]]
    stream = httpx2.get(f"{url}/streams/s").json()
    assert (stream["screened_steps"], stream["stuck_steps"], stream["last"]["stuck"]) == (4, 2, ["1"])
    metrics = httpx2.get(f"{url}/metrics").text
    assert 'ecl2o_screened_steps_total{policy="screened"} 4.0' in metrics
    assert 'ecl2o_stuck_steps_total{policy="screened"} 2.0' in metrics
