"""Settings of a study: checked, with defaults, and written to config.toml so that a run can be repeated."""

from typing import Literal

import pydantic


class DemandResponseSettings(pydantic.BaseModel):
    """What `ecl2o reproduce` does. The defaults are the paper's, on the built-in weather."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    weather: str | None = None  # a file; None: the built-in year
    preset: Literal["authors-code", "paper"] = "authors-code"
    base_shortage: float | Literal["auto"] | None = None  # W; None: the preset's, "auto" for the built-in weather
    fill: Literal["interpolate", "previous"] | None = None
    alpha: float = pydantic.Field(default=10.0, gt=0)
    seeds: int = pydantic.Field(default=5, ge=1)
    seed: int = 0  # the first of them
    quick: bool = False  # fewer seeds, steps and settings: a look, not a result

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, counted from the first."""
        count = min(self.seeds, 2) if self.quick else self.seeds
        return list(range(self.seed, self.seed + count))

    @property
    def training_steps(self) -> int:
        """Adam steps of each network."""
        return 300 if self.quick else 4000

    @property
    def seasonal_steps(self) -> int:
        """Adam steps of the structured advisor."""
        return 100 if self.quick else 1200

    @property
    def guarded_steps(self) -> int:
        """Adam steps of the correction inside the guard."""
        return 20 if self.quick else 200
