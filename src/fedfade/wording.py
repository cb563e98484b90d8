"""Numbers and names in sentences."""

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "seed"), counted(3, "seed"), counted(0, "slot")
    ('1 seed', '3 seeds', '0 slots')
    """
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def listed(names: Sequence[str]) -> str:
    """Names in a row.

    >>> listed(["random"]), listed(["random", "genie", "perfect"])
    ('random', 'random, genie and perfect')
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
