"""`ContextFeatures` in NumPy, from their definition on a whole series: the referee of a memory that contexts enter one by one."""

import numpy as np

WEEK, SPANS, LEADS, FURTHER = 7, (1, 2, 3, 6, 12, 24), (1, 2, 3, 4, 6, 8, 12), (1, 2, 3, 4, 6, 8, 12, 16, 20)
LAGS = (*range(1, 11), 12, 14, 16, 18, *range(20, 25), 36, 48, 72, 96, 120, 144, 168)
PROFILES = ((1, 7.0), (1, 21.0), (WEEK, 3.0))  # days of a period, half-life in periods


class Profile:
    """The decaying mean of each phase at every step: the first period as it is, later ones with their gain."""

    def __init__(self, values, period, gain):
        self.values, self.period, self.means = values, period, values.astype(float)
        for t in range(period, len(values)):
            before = self.means[t - period]
            self.means[t] = before + gain(t // period) * (values[t] - before)

    def usual(self, rows):
        """What it said of a step before it."""
        return np.where(rows < self.period, self.values[rows], self.means[rows - self.period])

    def ahead(self, rows, lead):
        return self.means[rows - (-lead % self.period)]

    def discounted(self, rows, rho):
        """(1 - rho) sum_{j >= 1} rho^j times what it says of j steps ahead, for ever: 400 periods of it."""
        powers = (1 - rho) * rho ** np.arange(1, 400 * self.period + 1)
        weights = powers.reshape(400, self.period).sum(axis=0)
        return sum(weights[j - 1] * self.ahead(rows, j) for j in range(1, self.period + 1))


def decaying(values, period, half_life):
    return Profile(values, period, lambda _: 1 - 0.5 ** (1 / half_life))


def steps(hours, period):
    return sorted({max(1, round(each * period / 24)) for each in hours})


def usual_mean(contexts, rows, period, rho):
    """The profile of a day from the next step on, with an anomaly that loses a tenth in an hour; the present as it is."""
    y, decay = contexts[:, 0], rho * 0.9 ** (24 / period)
    profile = decaying(y, period, 7.0)
    anomaly = y[rows] - profile.usual(rows)
    return (1 - rho) * (y[rows] + anomaly * decay / (1 - decay)) + profile.discounted(rows, rho)


def find_time(y, row, period, hours, typical):
    """The hour and the weekday at which the typical week correlates best with the mean week that ends at a row."""
    weeks = Profile(y, WEEK * period, lambda before: 1 / min(before + 1, 52)).means
    hourly = [weeks[row - back * period // hours - np.arange(period // hours)].mean() for back in range(WEEK * hours)]
    days, usual = np.reshape(hourly, (WEEK, hours)), np.reshape(typical, (WEEK, hours))
    of_hour = [
        sum(days.mean(axis=0)[back] * usual.mean(axis=0)[(hour - back) % hours] for back in range(hours))
        for hour in range(hours)
    ]
    hour = int(np.argmax(of_hour))
    flat = np.ravel(typical)
    of_weekday = [
        sum(flat[(hour + hours * weekday - back) % len(flat)] * hourly[back] for back in range(len(hourly)))
        for weekday in range(WEEK)
    ]
    return hour, int(np.argmax(of_weekday))


def slow_features(contexts, rows, features, rho):
    """The features of some rows of a series, (rows, k)."""
    period, y = features.period, contexts[:, 0]
    now, parts = y[rows], []
    if features.typical is not None:
        hours = features.hours_per_day
        times = [find_time(y, row, period, hours, np.asarray(features.typical)) for row in rows]
        hour, weekday = np.transpose(times)
        angles = 2 * np.pi / hours * hour * np.arange(1, features.harmonics // 2 + 1)[:, None]
        parts += [*np.sin(angles), *np.cos(angles), *(weekday == np.arange(WEEK)[:, None]).astype(float)]
    parts += [now, *(now - y[rows - lag] for lag in steps(LAGS, period))]
    for number, (days, half_life) in enumerate(PROFILES):
        profile = decaying(y, days * period, half_life)
        usual, coming = profile.usual(rows), profile.discounted(rows, rho)
        anomaly = y - profile.usual(np.arange(len(y)))
        parts += [anomaly[rows], *(anomaly[rows] - anomaly[rows - span] for span in steps(SPANS, period))]
        parts += [coming - rho * now, coming - rho * usual]
        if number != 1:
            parts += [profile.ahead(rows, lead) - usual for lead in steps(FURTHER, period)]
    for back in (period, WEEK * period):
        parts += [y[rows - back + lead] - y[rows - back] for lead in steps(LEADS, period)]
    last = np.stack([y[rows - lag] for lag in range(WEEK * period + 1)])
    parts += [last[:length].mean(axis=0) - now for length in steps((3, 6, 12, 24, 48, 72, 120, 168), period)]
    parts += [last[: length + 1].std(axis=0) for length in steps((6, 24), period)]
    parts += [last[day * period : (day + 1) * period].max(axis=0) - now for day in range(4)]
    parts.append(last[:period].min(axis=0) - now)
    for lead, column in zip(features.leads, contexts[:, contexts.shape[1] - len(features.leads) :].T, strict=True):
        if lead is not None:
            parts.append(column[rows] - now)
            continue
        profile, given = decaying(column, period, 7.0), column[rows]
        usual, coming = profile.usual(rows), profile.discounted(rows, rho)
        parts += [given, *(given - column[rows - span] for span in steps(SPANS, period)), given - usual]
        parts += [coming - rho * usual, *(profile.ahead(rows, lead) - usual for lead in steps(FURTHER, period))]
    return np.stack(parts, axis=1)
