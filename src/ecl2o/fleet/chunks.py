"""Sites of one shape, cut into chunks that fit into memory; the last one is filled up, so that all run one program."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

MOST_SITES = 32  # in a chunk: more gain little, and a chunk is what a lost worker must do again
DEFAULT_MEMORY = 4 * 2**30
PROCESS_BYTES = (
    900 * 2**20
)  # of a process that has imported JAX and compiled what a fit needs, measured (docs/scale.md)

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Chunk(Generic[Item]):
    """Sites that run as one program, the first `count` of them wanted: the others are the last one again."""

    items: tuple[Item, ...]
    count: int

    @property
    def wanted(self) -> tuple[Item, ...]:
        """Those that are no filling."""
        return self.items[: self.count]


def cut(
    items: Sequence[Item],
    shape: Callable[[Item], Hashable],
    item_bytes: Callable[[Item], int],
    memory: int = DEFAULT_MEMORY,
) -> list[Chunk[Item]]:
    """Chunks of items of one shape, of nearly the same size, such that one of them stays within `memory` bytes.

    >>> [chunk.items for chunk in cut([1, 2, 3, 40, 5], lambda n: n > 9, lambda n: 1, PROCESS_BYTES + 2)]
    [(1, 2), (3, 5), (40,)]
    """
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(shape(item), []).append(item)
    chunks = []
    for group in groups.values():
        most = min(MOST_SITES, (memory - PROCESS_BYTES) // item_bytes(group[0]))
        if most < 1:
            needed = (PROCESS_BYTES + item_bytes(group[0])) / 2**20
            raise ValueError(
                f"one site alone needs about {needed:.0f} MB; allow more memory than {memory / 2**20:.0f} MB."
            )
        count = -(-len(group) // most)
        size = -(-len(group) // count)
        for start in range(0, len(group), size):
            part = group[start : start + size]
            chunks.append(Chunk((*part, *[part[-1]] * (size - len(part))), len(part)))
    return chunks
