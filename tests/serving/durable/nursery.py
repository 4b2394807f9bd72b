"""A service that is born again whenever it is killed: a process that has imported everything forks it. Used by test_kills.

Arguments: store, port, policy file. Writes the service's process id, line by line; ends when its standard input does.
"""

import os
import select
import signal
import sys
from pathlib import Path


def live(store: str, port: int, policy: Path) -> None:
    from ecl2o.cli.numerics import use_double_precision, use_synchronous_dispatch
    from ecl2o.serving.http import Access, serve
    from ecl2o.serving.http.server import bind

    use_synchronous_dispatch()
    use_double_precision()
    serve(store, {policy.stem: policy.read_bytes()}, bind("127.0.0.1", port), Access())


def main() -> None:
    import ecl2o.serving.http  # noqa: F401  (what takes long is done once)

    store, port, policy = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    while True:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                live(store, port, policy)
                status = 0
            finally:
                os._exit(status)
        print(child, flush=True)
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if select.select([sys.stdin], [], [], 0.01)[0]:  # end of file: nobody is left
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return
        if not os.WIFSIGNALED(status):
            sys.exit(f"the service ended by itself with {status}")


if __name__ == "__main__":
    main()
