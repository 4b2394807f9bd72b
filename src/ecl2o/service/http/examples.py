"""Examples of every operation, for /openapi.json and the clients and pages made from it."""

from typing import Any

_STEP = {
    "step": 1,
    "action": [0.472],
    "hitting": 0.5284,
    "switching": 1.1137,
    "cost": 1.6421,
    "optimum": 1.0227,
    "live_ratio": 1.6057,
    "promise": 2.0,
    "promise_left": 0.4033,
    "promise_spent": 0.6057,
    "guard_active": True,
    "expert": 1.4203,
    "context": [1.5],
    "screened": False,
    "context_used": [1.5],
    "stuck": [],
    "unconverged": False,
    "time": "2024-01-31T06:00:00",
    "filled": False,
    "at": 1706680801.25,
}
_NEW = {
    "id": "site-1",
    "policy": "policy",
    "x0": [0.0],
    "history": 0,
    "created": 1706680800.5,
    "steps": 0,
    "screened_steps": 0,
    "stuck_steps": 0,
    "action": [0.0],
    "last": None,
    "start": "2024-01-31T06:00:00",
    "notice": None,
}
_STREAM = _NEW | {"steps": 1, "action": _STEP["action"], "last": _STEP}
_PROMISE = {"ratio": 2.0, "reference": "optimum", "allowance": 0.0, "period": None}
_POLICY = {"name": "policy", "agent": "Competitive(HittingMinimizer)", "promise": _PROMISE}
_UNKNOWN = {"status": 404, "detail": "There is no stream 'site-2'. Create it first."}
_CSV = "step,action_0,hitting,switching,cost\n1,0.472,0.5284,1.1137,1.6421\n"
_EVENT = 'event: steps\ndata: [{"stream": "site-1", "step": 1, "action": [0.472], "cost": 1.6421}]\n\n'
_METRICS = 'ecl2o_ready 1.0\necl2o_steps_total{policy="policy"} 1.0\necl2o_promise_spent_max{policy="policy"} 0.6057\n'

PARAMETERS = {"name": "policy", "id": "site-1", "after": 0, "limit": 100, "stream": "site-1"}
_AFTER_ID = ""  # `after` of /streams is an id
# (method, path): the body of the request, and that of the answer by media type; in an order in which they can be played.
EXAMPLES: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("put", "/policies/{name}"): ("the bytes of a policy file", {"application/json": {"name": "policy", "new": True}}),
    ("get", "/policies"): (None, {"application/json": [_POLICY | {"error": None}]}),
    ("get", "/policies/{name}"): (None, {"application/json": _POLICY}),
    ("put", "/streams/{id}"): (
        {"policy": "policy", "x0": [0.0], "start": "2024-01-31T06:00"},
        {"application/json": _NEW},
    ),
    ("post", "/streams/{id}/steps"): (
        {"step": 1, "time": "2024-01-31T06:00", "context": [1.5]},
        {"application/json": _STEP},
    ),
    ("post", "/steps"): (
        {"site-1": {"step": 1, "time": "2024-01-31T06:00", "context": [1.5]}, "site-2": [0.4]},
        {"application/json": {"answered": {"site-1": _STEP}, "refused": {"site-2": _UNKNOWN}}},
    ),
    ("get", "/streams"): (None, {"application/json": {"streams": [_STREAM], "next": None}}),
    ("get", "/streams/{id}"): (None, {"application/json": _STREAM}),
    ("get", "/streams/{id}/action"): (None, {"application/json": {"step": 1, "action": [0.472]}}),
    ("get", "/streams/{id}/hindsight"): (None, {"application/json": {"first": 1, "actions": [[0.1364]]}}),
    ("get", "/streams/{id}/steps"): (None, {"application/json": [_STEP], "text/csv": _CSV}),
    ("get", "/events"): (None, {"text/event-stream": _EVENT}),
    ("get", "/healthz"): (None, {"application/json": {"status": "alive"}}),
    ("get", "/readyz"): (None, {"application/json": {"ready": True, "reasons": []}}),
    ("get", "/metrics"): (None, {"text/plain": _METRICS}),
    ("delete", "/streams/{id}"): (None, {}),
}


def add_examples(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the examples to the operations of an OpenAPI schema, in place, and return it."""
    for (method, path), (request, answers) in EXAMPLES.items():
        operation = schema["paths"][path][method]
        for parameter in operation.get("parameters", ()):
            is_id = (path, parameter["name"]) == ("/streams", "after")
            parameter["example"] = _AFTER_ID if is_id else PARAMETERS[parameter["name"]]
        for content in operation.get("requestBody", {}).get("content", {}).values():
            content["example"] = request
        for status, response in operation["responses"].items():
            found = response.get("content", {})
            for media, content in found.items() if status in ("200", "201") else ():
                content["example"] = answers[media]
    return schema
