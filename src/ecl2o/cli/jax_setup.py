"""JAX's settings for the command line, made before JAX computes; the library itself changes no global setting."""


def use_cached_programs() -> None:
    """Compute in 64 bits, in which guarantees hold, and store compiled programs in the user's cache folder."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from ecl2o.policy.executable_cache import use_cache_folder

    use_cache_folder()


def set_up_steps() -> None:
    """Use cached programs, in the calling thread: for single small steps a worker thread costs more than the step."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    use_cached_programs()
