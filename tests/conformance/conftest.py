"""The order of the conformance suite."""

import pytest

from .registry import CASES, Case


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Case by case: what a worker has compiled and played of a case serves all its checks."""
    ours = [place for place, item in enumerate(items) if isinstance(_case(item), Case)]
    ordered = sorted((items[place] for place in ours), key=lambda item: CASES.index(_case(item)))
    for place, item in zip(ours, ordered, strict=True):
        items[place] = item


def _case(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("case")
