"""The command line: parsing and printing. Each command has its own module, and `commands` registers them.

Interrupts are handled before anything but the standard library is imported, so that Ctrl-C never ends in a traceback.
"""


def main() -> None:
    """Run the console script."""
    from ecl2o.cli.interrupts import run_interruptible

    run_interruptible(_run)


def _run() -> None:
    import gc
    import os
    import warnings

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # matrices are small: threads that wait cost more than they do
    gc.set_threshold(200_000, 20, 50)  # traced programs are many small objects that live long; saves a tenth of a fit
    from ecl2o.cli.commands import app

    warnings.formatwarning = lambda message, *_: f"ecl2o: {' '.join(str(message).split())}\n"
    app()
