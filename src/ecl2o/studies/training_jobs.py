"""Training that a study needs, run side by side: two compiled programs share two cores better than one uses them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ecl2o.recipes.progress import Progress


class Job:
    """A named piece of work; it is given a function to report (done, total) with."""

    def __init__(self, name: str, work: Callable[[Callable[[int, int, float], None]], Any]):
        self.name, self.work = name, work


def run_jobs(jobs: Sequence[Job], progress: Progress, workers: int = 2) -> dict[str, Any]:
    """Run all jobs, at most `workers` at a time; the results by name. The first failure is raised.

    After it no other job begins; an interrupt does not wait for those that have.
    """
    lock = threading.Lock()

    def one(job: Job) -> Any:
        def report(done: int, total: int, _loss: float) -> None:
            with lock:
                progress(job.name, done, total)

        return job.work(report)

    pool, patient = ThreadPoolExecutor(workers), True
    try:
        futures = {job.name: pool.submit(one, job) for job in jobs}
        return {name: future.result() for name, future in futures.items()}
    except KeyboardInterrupt:
        patient = False
        raise
    finally:
        pool.shutdown(patient, cancel_futures=True)
