"""Services that are born again whenever they are killed: a process that has imported and compiled everything forks them.

A new life takes a tenth of a second, not a second. What it inherits is code and the policy's program; streams, states and
policies it has from the store. test_kills compares its answers with those of a program that was compiled in another process.

Argument: the policy file. A line of standard input is a port and a store: the service there is born once the one before it is
dead, and its process id is written. When the input ends, all are killed.
"""

import asyncio
import gc
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path


def live(store: str, port: int, policy: Path) -> None:
    from ecl2o.service.http import Access, serve
    from ecl2o.service.http.app import bind

    serve(store, {policy.stem: policy.read_bytes()}, bind("127.0.0.1", port), Access())


def prepare(policy: Path) -> None:
    """Import all, and make the program of the policy's streams; it runs in its caller's thread, so it may be forked."""
    from ecl2o.cli.jax_setup import use_double_precision, use_synchronous_dispatch

    use_synchronous_dispatch()
    use_double_precision()
    import numpy as np

    from ecl2o.policy.policy import load
    from ecl2o.service import policy_registry

    sizes = (1, 1, 0)
    lanes = policy_registry.Lanes(load(policy), *sizes)
    lanes.play([lanes.begin(np.zeros(1), np.zeros((0, 1)))], [[1.0]])

    def inherited(_policy, *asked):
        assert asked == sizes
        return lanes

    policy_registry.Lanes = inherited
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(rehearse(f"sqlite:///{folder}/rehearsal.db", policy))
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    gc.collect()
    gc.freeze()  # a child that looks for garbage would copy every page


async def rehearse(store: str, policy: Path) -> None:
    """A life without a port: what is imported and worked out at the first request is so before the first birth."""
    import httpx
    import uvicorn

    from ecl2o.service import Store
    from ecl2o.service.http import make_app

    app = make_app(Store(store), None, {policy.stem: policy.read_bytes()})
    uvicorn.Config(app).load()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client,
    ):
        await client.put("/streams/a", json={"policy": policy.stem, "x0": [0.0]})
        await client.post("/streams/a/steps", json={"step": 1, "context": [1.0]})
        await client.post("/steps", json={"a": {"step": 2, "context": [1.0]}})
        assert (await client.get("/readyz")).status_code == 200


def birth(store: str, port: int, policy: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live(store, port, policy)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> None:
    policy = Path(sys.argv[1])
    prepare(policy)
    children: dict[str, int] = {}
    try:
        for line in sys.stdin:
            port, store = line.split()
            if port in children:
                _, status = os.waitpid(children.pop(port), 0)
                if not os.WIFSIGNALED(status):
                    sys.exit(f"the service ended by itself with {status}")
            children[port] = birth(store, int(port), policy)
            print(children[port], flush=True)
    finally:
        for child in children.values():
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
