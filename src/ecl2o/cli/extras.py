"""Commands that need more than the library is installed with."""


def need_serve() -> None:
    """Say how to install what the service needs, if it is not there."""
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"the service needs {error.name}; install it with: pip install 'ecl2o[serve]'") from None
