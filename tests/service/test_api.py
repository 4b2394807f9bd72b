"""The API over a real connection: statuses, words, and what others read."""

import csv
import io
import json
import threading

import httpx
import pytest

import ecl2o as ec
from ecl2o.service import Refused
from ecl2o.service.client import Client, Contract


def step(url, stream, context, number=None):
    asked = {"context": context} if number is None else {"context": context, "step": number}
    return httpx.post(f"{url}/streams/{stream}/steps", json=asked, timeout=60)


def test_policies_are_brought_and_described(url, policy_bytes):
    assert httpx.put(f"{url}/policies/other", content=policy_bytes).status_code == 201
    assert httpx.put(f"{url}/policies/other", content=policy_bytes).status_code == 200
    damaged = httpx.put(f"{url}/policies/third", content=policy_bytes[:-5])
    assert damaged.status_code == 422
    assert "cut short" in damaged.json()["detail"]
    about = httpx.get(f"{url}/policies/small").json()
    assert about["agent"] == "Competitive(HittingMinimizer)"
    assert (about["promise"]["ratio"], about["promise"]["period"]) == (1.6, None)
    assert [policy["name"] for policy in httpx.get(f"{url}/policies").json()] == ["other", "small"]
    assert httpx.get(f"{url}/policies/none").status_code == 404


def test_a_policy_that_would_fill_the_machine_is_not_accepted(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    profile = ec.forecasters.RollingProfile(days=1000, period=100_000)
    ec.save(tmp_path / "huge", ec.Policy(ec.RHC(3, truncate=False), problem, profile))
    answer = httpx.put(f"{url}/policies/huge", content=(tmp_path / "huge").read_bytes())
    assert answer.status_code == 422
    assert (
        "the file cannot be used: one stream would take 764 MiB of memory, and at most 32 MiB"
        in answer.json()["detail"]
    )
    assert httpx.get(f"{url}/policies/huge").status_code == 404


def test_a_step_its_repetition_and_what_is_refused(url):
    first = step(url, "a", [1.5], 1)
    assert first.status_code == 200
    assert set(first.json()) >= {
        *("step", "action", "hitting", "switching", "cost", "optimum"),
        *("live_ratio", "promise", "promise_left", "guard_active"),
    }
    assert step(url, "a", 1.5, 1).content == first.content
    other = step(url, "a", [2.0], 1)
    assert (other.status_code, other.json()["context_answered"], other.json()["context_sent"]) == (409, [1.5], [2.0])
    assert step(url, "a", [2.0], 3).status_code == 409
    for bad in ([1.0, 2.0], [], ["x"], "x", None, [[1.0]], [True], True, ["18"], "18"):
        assert step(url, "a", bad).status_code == 422
    assert httpx.post(f"{url}/steps", json={"a": True}).status_code == 422
    for raw in (b'{"context": [NaN]}', b'{"context": [1e999]}', b"{", b"[]", b"\xff"):
        answer = httpx.post(f"{url}/streams/a/steps", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        json.loads(answer.content, parse_constant=pytest.fail)  # the answer itself is sound JSON
    assert step(url, "none", [1.0]).status_code == 404
    assert httpx.get(f"{url}/streams/a/action").json() == {"step": 1, "action": first.json()["action"]}


def test_a_stream_that_could_never_answer_is_not_made(url):
    for x0, words in (
        ([1e308], "x0 has a number of the size 1e+308; up to 1e+100"),
        (["1"], "valid number"),
        ([True], ""),
    ):
        answer = httpx.put(f"{url}/streams/far", json={"policy": "small", "x0": x0})
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True)
    answer = httpx.put(f"{url}/streams/far", json={"policy": "small", "x0": [0], "history": [[-1e200]]})
    assert (answer.status_code, "history has a number" in answer.json()["detail"]) == (422, True)
    assert httpx.get(f"{url}/streams/far").status_code == 404


def test_a_step_of_which_nothing_is_guaranteed_says_so_and_is_counted(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    guard = ec.Competitive(ec.HittingMinimizer(), ratio=1.8, contexts=(-1.0, 1.0))
    ec.save(tmp_path / "guard", ec.Policy(guard, problem))
    with Client(url) as client:
        client.put_policy("bounded", tmp_path / "guard")
        client.put_stream("lost", "bounded", [0.0])
    answers = [step(url, "lost", [context]).json() for context in (0, 0.5, 50.0)]  # a whole number is a number
    assert [answer["unconverged"] for answer in answers] == [False, False, True]
    assert httpx.get(f"{url}/streams/lost/steps").json() == answers
    assert 'ecl2o_unconverged_steps_total{policy="bounded"} 1.0' in httpx.get(f"{url}/metrics").text


def test_many_streams_in_one_call_each_for_itself(url):
    asked = {"b": {"context": [1.0], "step": 1}, "none": [1.0], "a": [1.0, 2.0]}
    answer = httpx.post(f"{url}/steps", json=asked).json()
    assert set(answer["answered"]) == {"b"}
    assert {stream: why["status"] for stream, why in answer["refused"].items()} == {"none": 404, "a": 422}


def test_steps_as_csv_have_a_column_for_each_number(url):
    text = httpx.get(f"{url}/streams/b/steps", headers={"accept": "text/csv"}).text
    rows = list(csv.DictReader(io.StringIO(text)))
    found = httpx.get(f"{url}/streams/b/steps?after=0").json()
    assert [float(row["action_0"]) for row in rows] == [step["action"][0] for step in found]
    assert httpx.get(f"{url}/streams/b/steps?after=1").json() == []


def test_events_tell_of_steps(url):
    heard, begun = [], threading.Event()

    def listen():
        with httpx.stream("GET", f"{url}/events?stream=b", timeout=60) as events:
            for line in events.iter_lines():
                begun.set()
                if line.startswith("data:"):
                    heard.extend(json.loads(line[5:]))
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert begun.wait(30)
    answer = step(url, "b", [2.0]).json()
    thread.join(30)
    assert heard == [{"stream": "b", **answer}]


def test_prometheus_reads_steps_refusals_and_promises(url):
    text = httpx.get(f"{url}/metrics").text
    for name in (
        "steps_total",
        "refusals_total",
        "step_seconds_bucket",
        "live_ratio_max",
        "promise_ratio",
        "ready 1.0",
    ):
        assert f"ecl2o_{name}" in text
    assert httpx.get(f"{url}/readyz").json() == {"ready": True, "reasons": []}


def test_the_client_counts_and_retries(url):
    with Client(url) as client:
        client.put_stream("counted", "small", [0.0])
        first = client.step("counted", [1.0])
        assert client.put_stream("counted", "small", [0.0])["steps"] == 1
        assert client.steps({"counted": [2.0]})["counted"]["step"] == 2
        assert [s["step"] for s in client.played("counted")] == [1, 2]
        assert client.played("counted")[0] == first
        with pytest.raises(Refused) as refused:
            client.put_stream("counted", "small", [1.0])
        assert refused.value.status == 409
    with Client("http://127.0.0.1:9", patience=0.2) as nobody, pytest.raises(TimeoutError):
        nobody.action("counted")


def test_who_has_no_token_is_turned_away(guarded_url):
    def ask(method, path, token=None, **more):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.request(method, guarded_url + path, headers=headers | more.pop("headers", {}), **more)

    made = {"policy": "small", "x0": [0.0]}
    assert ask("GET", "/streams").status_code == 401
    assert ask("GET", "/streams", "wrong").status_code == 401
    assert httpx.get(guarded_url + "/streams", headers={"authorization": b"Bearer s\xe9cret"}).status_code == 401
    assert ask("GET", "/streams", "looking").status_code == 200
    assert ask("PUT", "/streams/x", "looking", json=made).status_code == 403
    assert ask("PUT", "/streams/x", "secret", json=made, timeout=60).status_code == 201
    assert ask("GET", "/healthz").status_code == 200
    page = ask("GET", "/", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    assert ask("POST", "/login", data={"token": "wrong"}).status_code == 401
    with httpx.Client(base_url=guarded_url) as browser:
        assert browser.post("/login", data={"token": "looking"}).status_code == 303
        assert browser.get("/").status_code == 200
        assert browser.delete("/streams/x").status_code == 403
    assert "httponly" in ask("POST", "/login", data={"token": "looking"}).headers["set-cookie"].lower()


def test_other_sites_pages_and_other_names_are_turned_away(url):
    cross = {"sec-fetch-site": "cross-site"}
    assert httpx.post(f"{url}/steps", json={}, headers=cross).status_code == 403
    assert httpx.get(f"{url}/streams", headers={"host": "evil.example"}).status_code == 403
    headers = httpx.get(url).headers
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_a_service_for_other_machines_needs_a_token():
    from ecl2o.service.http import Access

    with pytest.raises(ValueError, match="ECL2O_TOKEN"):
        Access().check_host("0.0.0.0")
    Access("secret").check_host("0.0.0.0")
    Access().check_host("127.0.0.1")


def test_a_reading_that_is_not_believed_is_answered_said_to_be_so_and_counted(url, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    contract = Contract(context_dim=1, plausible=[(0.0, 10.0)], accepted_after=9)
    ec.save(tmp_path / "site", ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.7), problem, contract=contract))
    with Client(url) as client:
        client.put_policy("screened", tmp_path / "site")
        client.put_stream("s", "screened", [4.0], [[4.0]] * 4)
        answers = [client.step("s", context) for context in ([5.0], [5000.0], [None], [float("nan")], [6.0])]
    assert [answer["screened"] for answer in answers] == [False, True, True, True, False]
    assert [answer["context"] for answer in answers] == [[5.0], [5000.0], [None], [None], [6.0]]
    assert [answer["context_used"] for answer in answers] == [[5.0], [5.0], [5.0], [5.0], [6.0]]
    assert max(answer["live_ratio"] for answer in answers) <= 1.7 * (1 + 1e-9)
    assert step(url, "s", [6.0], 5).json() == answers[-1]
    assert step(url, "s", [None], 5).status_code == 409
    httpx.put(f"{url}/streams/new", json={"policy": "screened", "x0": [4.0]}, timeout=60).raise_for_status()
    refused = step(url, "new", [5000.0])
    assert refused.status_code == 422
    assert "the context (5000) is not plausible, which would be from 0 to 10" in refused.json()["detail"]
    together = httpx.post(f"{url}/steps", json={"s": None, "b": [None]}).json()
    assert together["answered"]["s"]["context_used"] == [6.0]
    assert "missing" in together["refused"]["b"]["detail"]
    assert httpx.get(f"{url}/streams/s/steps?after=0").json()[:5] == answers
    assert len(httpx.get(f"{url}/streams/s/hindsight").json()["actions"]) == 4
    assert 'ecl2o_screened_steps_total{policy="screened"} 4.0' in httpx.get(f"{url}/metrics").text
