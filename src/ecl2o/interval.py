"""Parse intervals written as LOW:HIGH, in options and manifests."""


def parse_interval(text: str) -> tuple[float, float]:
    """Return (low, high) of a text such as "0:1.5".

    >>> parse_interval("0:1.5")
    (0.0, 1.5)

    Raises:
        ValueError: If the text is not LOW:HIGH with LOW less than HIGH.
    """
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise ValueError(f"must be LOW:HIGH, for example 0:1.5, got {text!r}.") from None
    if not ends[0] < ends[1]:
        raise ValueError(f"must have LOW less than HIGH, got {text!r}.")
    return ends
