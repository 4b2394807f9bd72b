"""Fork services from a process that has imported and compiled everything, so that a restart takes a tenth of a second.

A forked service inherits code and the compiled step; policies, streams and states come from the store. test_kills compares its
answers with those of a stepper that was compiled in another process.

Argument: the policy file. Each line of standard input is a port and a store: the service is started as soon as the previous one
on that port is dead, and its process id is printed. When the input ends, all services are killed.
"""

import asyncio
import gc
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path


def run_service(store: str, port: int, policy: Path) -> None:
    from ecl2o.service.http import Access, serve
    from ecl2o.service.http.startup import bind

    serve(store, {policy.stem: policy.read_bytes()}, bind("127.0.0.1", port), Access())


def prepare(policy: Path) -> None:
    """Import everything and compile the step; it runs in its caller's thread, so it may be forked."""
    import jax

    from ecl2o.cli.jax_setup import use_cached_programs

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    use_cached_programs()
    import numpy as np

    from ecl2o.policy.policy import load
    from ecl2o.service import policy_registry

    sizes = (1, 1, 0)
    stepper = policy_registry.BatchedStepper(load(policy), *sizes)
    stepper.step([stepper.start(np.zeros(1), np.zeros((0, 1)))], [[1.0]])

    def get_stepper(_policy, *requested):
        assert requested == sizes
        return stepper

    policy_registry.BatchedStepper = get_stepper
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(warm_up(f"sqlite:///{folder}/warm-up.db", policy))
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    gc.collect()
    gc.freeze()  # garbage collection in a child would copy every page


async def warm_up(store: str, policy: Path) -> None:
    """Serve some requests without a port, so that everything is imported before the first fork."""
    import httpx2
    import uvicorn

    from ecl2o.service import Store
    from ecl2o.service.http import make_app

    app = make_app(Store(store), None, {policy.stem: policy.read_bytes()})
    uvicorn.Config(app).load()
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client,
    ):
        await client.put("/streams/a", json={"policy": policy.stem, "x0": [0.0]})
        await client.post("/streams/a/steps", json={"step": 1, "context": [1.0]})
        await client.post("/steps", json={"a": {"step": 2, "context": [1.0]}})
        assert (await client.get("/readyz")).status_code == 200


def fork_service(store: str, port: int, policy: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run_service(store, port, policy)
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
                    sys.exit(f"the service ended on its own with status {status}")
            children[port] = fork_service(store, int(port), policy)
            print(children[port], flush=True)
    finally:
        for child in children.values():
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
