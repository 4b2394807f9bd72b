"""JAX's settings for the command line, made before JAX computes; the library itself changes no global setting."""


def use_double_precision() -> None:
    """Compute in 64 bits, in which guarantees hold."""
    import jax

    jax.config.update("jax_enable_x64", True)


def use_synchronous_dispatch() -> None:
    """Run programs in the calling thread: for single small steps a worker thread costs more than the step."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
