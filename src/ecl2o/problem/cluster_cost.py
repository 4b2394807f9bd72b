"""The hitting cost of a cluster of several kinds of racks: the hourly cost of power, delay and overload.

An action x holds the racks of each kind that are on besides a standby b that always is: n = x + b, 0 <= x <= capacity. The
context is the workload y of the hour, in thousands of requests per second (krps). One step is one hour, all costs are in $.

Kind i serves speed s_i (krps) per rack at nominal speed. Given a load l_i it runs at the utilisation u_i = l_i / (s_i n_i) and

- draws  idle_i n_i + losses_i n_i^2 / 2 + dynamic_i n_i u_i^2  kW: what being on takes; distribution and cooling losses, which
  grow with the square of the current in the kind's own feed; and speed, whose power is quadratic in u (frequency and voltage
  scale together). u_i > 1 is overclocking: allowed, at a higher cost;
- makes its requests wait: delay_price l_i u_i, a latency proportional to utilisation, in $ per krps and hour at u = 1.

The dispatcher splits the load at the least cost. Both terms in l_i are multiples of l_i^2 / (s_i n_i), so it minimises

    sum_i k_i l_i^2 / (s_i n_i)  over  sum_i l_i = y,     k_i = delay_price + energy_price dynamic_i / s_i,

whose solution has equal marginal costs 2 k_i l_i / (s_i n_i): l_i = y g_i / sum_j g_j with g_i = s_i n_i / k_i, always positive,
and costs y^2 / sum_i g_i. So the optimal split is inside the cost in closed form, and the cost is smooth wherever n > 0.

What exceeds the share `headroom` of the nominal speed of all racks is late and costs overload_price per krps, rounded off by
a softplus of width `softness`: overload is smooth and finite too. Together

    f(x, y) = energy_price (idle' n + n' diag(losses) n / 2) + y^2 / sum_i g_i + overload_price softplus(y - headroom s'n).

f >= 0 on the box; the last two terms are convex in x (the square over a linear function; a softplus of a linear function), and
their curvature is of rank one, in the directions of g and s. The losses give curvature in all directions:
**m = energy_price min_i losses_i**, in $/rack^2, which is approached as y -> 0.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.problem.arrays import as_float, check_finite, check_positive


class ClusterCost(eqx.Module):
    """The cost f(x, y) derived above, for `ConvexCost`.

    Args:
        standby: (d,), b, racks of each kind that are always on.
        speed: (d,), s, krps per rack.
        idle: (d,), kW per rack.
        dynamic: (d,), kW per rack at full utilisation.
        losses: (d,), kW per squared rack.
        energy_price: $ per kWh.
        delay_price: $ per krps and hour at full utilisation.
        overload_price: $ per krps.
        headroom: a share of the nominal speed.
        softness: krps.
    """

    standby: Float[Array, " d"] = eqx.field(converter=as_float)
    speed: Float[Array, " d"] = eqx.field(converter=as_float)
    idle: Float[Array, " d"] = eqx.field(converter=as_float)
    dynamic: Float[Array, " d"] = eqx.field(converter=as_float)
    losses: Float[Array, " d"] = eqx.field(converter=as_float)
    energy_price: Float[Array, ""] = eqx.field(converter=as_float)
    delay_price: Float[Array, ""] = eqx.field(converter=as_float)
    overload_price: Float[Array, ""] = eqx.field(converter=as_float)
    headroom: Float[Array, ""] = eqx.field(converter=as_float)
    softness: Float[Array, ""] = eqx.field(converter=as_float)

    def __check_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            check_finite(field.name, value)
            check_positive(field.name, value)
            if value.ndim and value.shape != self.speed.shape:
                raise ValueError(f"{field.name} must have one number per kind, {self.speed.size}, got {value.size}.")

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        """m = energy_price min losses, in $/rack^2."""
        return self.energy_price * jnp.min(self.losses)

    def split(self, racks: Float[Array, " d"], load: Float[Array, ""]) -> Float[Array, " d"]:
        """Return the cheapest load of each kind, in krps; they sum to the whole load."""
        ease = self._ease(racks + self.standby)
        return load * ease / jnp.sum(ease)

    def _ease(self, racks_on: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return g_i = s_i n_i / k_i, in krps^2/$."""
        per_load = self.delay_price + self.energy_price * self.dynamic / self.speed
        return self.speed * racks_on / per_load

    def __call__(self, racks: Float[Array, " d"], workload: Float[Array, " 1"]) -> Float[Array, ""]:
        """Return f(x, y), in $ per hour."""
        on, load = racks + self.standby, workload[0]
        being_on = self.energy_price * (self.idle @ on + 0.5 * self.losses @ on**2)
        serving = load**2 / jnp.sum(self._ease(on))
        beyond = (load - self.headroom * self.speed @ on) / self.softness
        return being_on + serving + self.overload_price * self.softness * jax.nn.softplus(beyond)
