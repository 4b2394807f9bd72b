"""Settings of the case studies, checked and written to config.toml, and the paragraph that opens each report."""

from typing import Annotated, Any, ClassVar, Literal

import pydantic

from ecl2o.fitting.settings import LEAST_ALPHA, MOST_ALPHA

DEMAND_RESPONSE = (
    "Every hour a data center sees the shortage y of its renewable supply (the context) and chooses how much load x to shed (the "
    "action), at once and not knowing the hours to come. The hour costs 1/2 (x - y)^2 for the miss and alpha/2 (x - previous x)^2"
    " for the change, with alpha = {alpha:g}: a change is {alpha:g} times worse than a miss of the same size. The miss has "
    "curvature m = {m:g}, and the change is weighed alike in every direction, beta = alpha. Figures show power; costs are in "
    "squares of the scaled contexts."
)
RIGHT_SIZING = (
    "Every hour a cluster sees its workload y in thousands of requests per second (the context) and chooses how many racks x of "
    "each kind are on (the action), at once and not knowing the hours to come. The hour costs energy and delay, a convex function"
    " of x with curvature at least m = {m:.3g}, and starting or stopping racks costs (x - previous x)' Q (x - previous x), with "
    "curvatures between alpha = {alpha:.3g} and beta = {beta:.3g}. Costs are in dollars."
)


PositiveNumber = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class StudySettings(pydantic.BaseModel):
    """Settings of every study."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    full_steps: ClassVar[int] = 4000  # of training, unless the run is quick

    fill: Literal["interpolate", "previous"] | None = None
    seeds: int = pydantic.Field(default=5, ge=1, le=1000)
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)  # the first of them
    quick: bool = False  # fewer seeds, steps and settings; figures of networks mean nothing

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, counted from the first."""
        count = min(self.seeds, 2) if self.quick else self.seeds
        return list(range(self.seed, self.seed + count))

    @property
    def training_steps(self) -> int:
        """Adam steps of each network."""
        return 300 if self.quick else self.full_steps

    def as_run(self) -> dict[str, Any]:
        """The settings as plain values, with the number of seeds that really ran."""
        return self.model_dump() | {"seeds": len(self.seed_numbers)}


class DemandResponseSettings(StudySettings):
    """What `ecl2o reproduce` does. The defaults are the paper's, on the built-in weather."""

    weather: str | None = None  # a file; None: the built-in year
    preset: Literal["authors-code", "paper"] = "authors-code"
    network: Literal["lstm", "mlp"] | None = (
        None  # None: the preset's, an LSTM in the authors' code, an MLP in the paper
    )
    base_shortage: PositiveNumber | Literal["auto"] | None = (
        None  # W; None: the preset's, or "auto" for built-in weather
    )
    alpha: float = pydantic.Field(default=10.0, ge=LEAST_ALPHA, le=MOST_ALPHA)

    @property
    def seasonal_steps(self) -> int:
        """Adam steps of the structured advisor."""
        return 100 if self.quick else 1200

    @property
    def guarded_steps(self) -> int:
        """Adam steps of the correction inside the guard."""
        return 20 if self.quick else 200


class RightSizingSettings(StudySettings):
    """What `ecl2o reproduce --study right-sizing` does. The first seed is also the built-in workload's."""

    full_steps: ClassVar[int] = 3000
    workload: str | None = None  # a CSV or Parquet file of one number per step; None: the built-in one
    time_column: str | None = None
    column: str | None = None  # which number, where the file has several
    peak: PositiveNumber = 25.0  # krps, what the largest training value of a file is scaled to
    training_days: int = pydantic.Field(default=60, ge=2)
    validation_days: int = pydantic.Field(default=30, ge=1)
