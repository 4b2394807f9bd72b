"""Which column is which: the three that are needed, as files spell them, and their units."""

import re

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Table, listed

COLUMNS = ("ghi", "temperature", "wind_speed")

_SPELLINGS = {
    "ghi": re.compile(r"ghi|global horizontal( solar)? (irradiance|radiation)"),
    "temperature": re.compile(r"temperature|temp|temp air|air temp(erature)?|dry bulb( temperature)?|tdry"),
    "wind_speed": re.compile(r"wind ?speed|wspd|wind ?speed( at)? \d+ ?m"),
}
_UNITS = {
    "ghi": {"w/m2", "w/m^2", "w/m²", "w/m**2", "w m-2", "wh/m2", "wh/m^2"},
    "temperature": {"c", "°c", "degc", "deg c", "celsius", "degrees c"},
    "wind_speed": {"m/s", "m s-1", "mps", "m/sec"},
}
UNIT_WORDS = {"ghi": "W/m2", "temperature": "C", "wind_speed": "m/s"}


def spelled(name: str) -> tuple[str | None, str]:
    """(our name or None, unit or "") of a column as files spell it: 'Wind Speed (m/s)' -> ('wind_speed', 'm/s')."""
    match = re.fullmatch(r"([^(\[]*)(?:[(\[]([^)\]]*)[)\]])?\s*", name.strip())
    if match is None:
        return None, ""
    words = re.sub(r"[\s_-]+", " ", match.group(1)).strip().lower()
    own = next((own for own, spelling in _SPELLINGS.items() if spelling.fullmatch(words)), None)
    return own, (match.group(2) or "").strip()


def find_columns(table: Table) -> dict[str, str]:
    """The file's names of the columns that are needed, by our own."""
    found: dict[str, str] = {}
    for name in table.columns:
        own, unit = spelled(name)
        if own is None:
            continue
        if own in found:
            raise DataError(
                f"{table.path}: both '{found[own]}' and '{name}' could be {own}. Rename or remove the one that is not meant."
            )
        refuse_unit(table, own, name, unit)
        found[own] = name
    for own in COLUMNS:
        if own not in found:
            raise DataError(
                f"{table.path}: the column {own} ({UNIT_WORDS[own]}) is missing; the file has {listed(table.columns)}. "
                "Download the file again with GHI, temperature and wind speed selected, or rename the column."
            )
    return found


def refuse_unit(table: Table, own: str, name: str, unit: str) -> None:
    """Refuse a column in another unit than ours."""
    if unit and unit.lower() not in _UNITS[own]:
        raise DataError(
            f"{table.path}: the column '{name}' is in {unit!r}, but {own} must be in {UNIT_WORDS[own]}. Convert it."
        )
