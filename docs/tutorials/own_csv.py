# %% [markdown]
# # Your own CSV
#
# You have a file with a time column and a column of numbers to follow. Here is one made from four months of the built-in
# weather.

# %%
import tempfile
from pathlib import Path

import jax
import pandas as pd

import ecl2o as ec

jax.config.update("jax_enable_x64", True)

contexts = ec.data.weather_contexts()
hours = 120 * 24
frame = pd.DataFrame({"shortage": 40.0 * contexts.values[:hours, 0]}, index=contexts.time[:hours].rename("time"))
path = Path(tempfile.mkdtemp()) / "shortage.csv"
frame.to_csv(path)
print(*path.read_text().splitlines()[:4], sep="\n")

# %% [markdown]
# Read it with pandas, or with the library's own reader, which names the line of each error and fills gaps on request.

# %%
frame, about = ec.data.read_series(path)
print(about.columns, about.step_minutes, "minutes a step")

# %% [markdown]
# Fit. The first two thirds of the days train the candidates, the next sixth selects one, and the rest tests it. In a shell
# this is `ecl2o fit shortage.csv --alpha 10`. With `promise=2` the policy acts behind a guard and is trained through it, which
# takes a minute or two longer.

# %%
fitted = ec.fit_series(frame, alpha=10.0, advisor="ridge")
fitted

# %%
_ = fitted.plot()

# %% [markdown]
# The policy now acts one row at a time, continuing where the file ended. `predict` does the same for a whole frame, without
# looking ahead.

# %%
last = float(frame["shortage"].iloc[-1])
for request in (last, last + 0.5, last + 1.0):
    print(f"{request:.2f} -> {fitted.step(request)[0]:.2f}")

# %% [markdown]
# Save it for `ecl2o act`, `ecl2o evaluate` and [the service](../service.md). The file contains no code, and loading it executes
# none.

# %%
ec.save(path.with_suffix(".ecl2o"), fitted.policy_)
print(ec.load(path.with_suffix(".ecl2o")).contract.columns)
