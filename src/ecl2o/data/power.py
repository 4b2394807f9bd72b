"""Wind and solar power from the weather: the models of the paper's section 6.1, in SI units."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WindTurbines:
    """Conversion efficiency (1), air density (kg/m3) and swept area (m2).

    Args:
        efficiency: a share of the wind's power.
        air_density: in kg/m3.
        swept_area: in m2.
    """

    efficiency: float
    air_density: float
    swept_area: float


@dataclass(frozen=True)
class SolarArray:
    """Power = `factor` * efficiency * area * GHI * (1 - loss_per_degree (T - 25 C)).

    `factor` is 1/2 in the paper and 1 in its authors' code; `clipped` says that the bracket is not let below 0, as
    physics demands above 45 C. `efficiency` is a share, `area` in m2.

    Args:
        efficiency: a share of the irradiance.
        area: in m2.
        factor: 1/2 in the paper, 1 in its authors' code.
        clipped: whether the bracket is kept from falling below 0.
        loss_per_degree: a share, for each degree above 25 C. Default: 0.05.
    """

    efficiency: float
    area: float
    factor: float
    clipped: bool
    loss_per_degree: float = 0.05


PAPER_WIND = WindTurbines(efficiency=0.30, air_density=1.23, swept_area=500_000.0)
PAPER_SOLAR = SolarArray(efficiency=0.10, area=10_000.0, factor=0.5, clipped=True)
AUTHORS_WIND = WindTurbines(efficiency=0.30, air_density=1.23, swept_area=5_000.0)
AUTHORS_SOLAR = SolarArray(efficiency=0.10, area=100.0, factor=1.0, clipped=False)


def wind_power(turbines: WindTurbines, wind_speed: np.ndarray) -> np.ndarray:
    """Watts from wind speeds in m/s: 1/2 * efficiency * density * area * v^3.

    Args:
        turbines: the turbines.
        wind_speed: (n,), in m/s.

    Returns:
        (n,), in W.

    >>> float(wind_power(AUTHORS_WIND, np.array([2.0]))[0])
    7380.0
    """
    return 0.5 * turbines.efficiency * turbines.air_density * turbines.swept_area * np.asarray(wind_speed) ** 3


def solar_power(array: SolarArray, ghi: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    """Watts from irradiance in W/m2 and air temperature in C.

    Args:
        array: the panels.
        ghi: (n,), global horizontal irradiance in W/m2.
        temperature: (n,), air temperature in C.

    Returns:
        (n,), in W.

    >>> hot, mild = solar_power(PAPER_SOLAR, np.array([800.0, 800.0]), np.array([50.0, 25.0]))
    >>> float(hot), float(mild)
    (0.0, 400000.0)
    """
    derating = 1.0 - array.loss_per_degree * (np.asarray(temperature) - 25.0)
    if array.clipped:
        derating = np.maximum(derating, 0.0)
    return array.factor * array.efficiency * array.area * np.asarray(ghi) * derating
