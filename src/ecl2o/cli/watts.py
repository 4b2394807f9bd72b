"""The option `--base-shortage` of the commands that read weather."""

import typer


def watts(text: str) -> float | str:
    """The value of --base-shortage."""
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(
            f"must be a positive number of watts or auto, got {text!r}.", param_hint="--base-shortage"
        )
    return value
