"""Which kind of weather file it is."""

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Source
from ecl2o.data.weather.columns import COLUMNS, spelled
from ecl2o.data.weather.epw import read_epw
from ecl2o.data.weather.file import CLOCK, WeatherFile, cells_of
from ecl2o.data.weather.nsrdb import read_nsrdb
from ecl2o.data.weather.plain import read_clock_columns, read_plain
from ecl2o.data.weather.tmy3 import read_tmy3


def recognise(source: Source, text: str) -> WeatherFile:
    """Read the file as the kind that its first lines show."""
    lines = text.splitlines()
    first = lines[0].strip()
    if first.upper().startswith("LOCATION,"):
        return read_epw(source, text, lines)
    if len(lines) > 1 and lines[1].replace('"', "").lower().startswith("date (mm/dd/yyyy)"):
        return read_tmy3(source, text, first)
    names = [name.strip() for name in cells_of(first)]
    if "Latitude" in names or "Source" in names:
        return read_nsrdb(source, text, lines)
    if set(CLOCK[:4]) <= set(names):
        return read_clock_columns(source, text)
    if any(spelled(name)[0] in COLUMNS for name in names):
        return read_plain(source, text)
    raise DataError(
        f"{source.path}, line 1: this is not a weather file of a known kind (NSRDB PSM3 or PSM4, TMY3, EPW, or CSV with the "
        f"columns {', '.join(COLUMNS)}); it begins with {first[:60]!r}. For other series use read_series."
    )
