"""Files of the National Solar Radiation Database, PSM3 and PSM4."""

import re

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Source, read_table
from ecl2o.data.weather.columns import find_columns, refuse_unit
from ecl2o.data.weather.file import Site, WeatherFile, cells_of, clock_times, header_number, header_zone


def read_nsrdb(source: Source, text: str, lines: list[str]) -> WeatherFile:
    """Two lines about the site, then the table; the clock is UTC or local, as the header says."""
    if len(lines) < 3:
        raise DataError(
            f"{source.path}: an NSRDB file has two lines about the site, then the names of the columns, then data."
        )
    header = {name.strip(): cell.strip() for name, cell in zip(cells_of(lines[0]), cells_of(lines[1]), strict=False)}
    table = read_table(source, text, skip=2)
    columns = find_columns(table)
    for own, unit_cell in (
        ("ghi", "GHI Units"),
        ("temperature", "Temperature Units"),
        ("wind_speed", "Wind Speed Units"),
    ):
        refuse_unit(table, own, columns[own], header.get(unit_cell, header.get(unit_cell.removesuffix(" Units"), "")))
    version = re.search(r"\d", header.get("Version", ""))
    zone = header_zone(source, header, "Time Zone")
    local_zone = header_zone(source, header, "Local Time Zone")
    place = [
        header[key] for key in ("City", "State", "Country") if header.get(key, "-") not in ("-", "", "None", "b'None'")
    ]
    site = Site(
        ", ".join(place) or f"{header.get('Source', 'NSRDB')} location {header.get('Location ID', 'unknown')}",
        header_number(source, header, "Latitude"),
        header_number(source, header, "Longitude"),
        local_zone if zone is None else zone,
        zone if local_zone is None else local_zone,
    )
    return WeatherFile(
        f"NSRDB PSM{version.group() if version else ''}", site, table, "Year to Minute", clock_times(table), columns
    )
