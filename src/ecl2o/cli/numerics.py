"""How the command line sets JAX up; the library itself never flips a global switch. Call before anything is computed."""


def use_double_precision() -> None:
    """Guarantees are promised in 64 bits."""
    import jax

    jax.config.update("jax_enable_x64", True)


def use_synchronous_dispatch() -> None:
    """For one small step after the other, handing each to a worker thread costs more than the step."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
