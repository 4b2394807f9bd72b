"""How the command line sets JAX up; the library itself never flips a global switch. Call before anything is computed."""


def use_double_precision() -> None:
    """Guarantees are promised in 64 bits."""
    import jax

    jax.config.update("jax_enable_x64", True)


def use_synchronous_dispatch() -> None:
    """For one small step after the other, handing each to a worker thread costs more than the step."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def keep_compiled_programs() -> None:
    """Programs that were compiled once are found again by the next process, in the user's cache folder.

    Where JAX_COMPILATION_CACHE_DIR names a folder, or an empty one for none, that is left as it is.
    """
    import os
    from pathlib import Path

    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "ecl2o" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a service without a home compiles every time
        return
    if not os.access(folder, os.W_OK):
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
