"""Thousands of damaged files: each is refused with its name, or read as what it says; nothing ends in a traceback.

The damage is drawn with fixed seeds: bytes flipped, removed and doubled, files cut, columns swapped, other encodings and line
ends, huge numbers, empty cells, headers twice. A policy file has a checksum, so that any change of it must be refused.
"""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from weather_texts import psm_text, weather_table

import ecl2o as ec
from ecl2o.data import read_series, read_weather
from ecl2o.exceptions import DataError

EACH = 700  # damaged files of each kind


def _flip(text: bytes, rng) -> bytes:
    damaged = bytearray(text)
    for place in rng.integers(0, len(damaged), rng.integers(1, 6)):
        damaged[place] = rng.integers(0, 256)
    return bytes(damaged)


def _cut(text: bytes, rng) -> bytes:
    return text[: rng.integers(0, len(text))]


def _drop(text: bytes, rng) -> bytes:
    start = rng.integers(0, len(text))
    return text[:start] + text[start + rng.integers(1, 200) :]


def _double(text: bytes, rng) -> bytes:
    start = rng.integers(0, len(text))
    end = start + rng.integers(1, 200)
    return text[:end] + text[start:]


def _cells(
    change: Callable[[list[list[bytes]], np.random.Generator], None],
) -> Callable[[bytes, np.random.Generator], bytes]:
    def damage(text: bytes, rng) -> bytes:
        rows = [line.split(b",") for line in text.split(b"\n")]
        change(rows, rng)
        return b"\n".join(b",".join(row) for row in rows)

    return damage


def _swap_columns(rows, rng) -> None:
    a, b = rng.integers(0, max(map(len, rows)), 2)
    for row in rows[rng.integers(0, len(rows)) :]:
        if max(a, b) < len(row):
            row[a], row[b] = row[b], row[a]


def _put(rows, rng) -> None:
    odd = [
        b"1e300",
        b"-1e308",
        b"1e999",
        b"nan",
        b"",
        b"inf",
        b"NULL",
        b"0x10",
        b"1,5",
        b'"',
        b"\x00",
        "\u0663".encode(),
        b"--",
    ]
    row = rows[rng.integers(0, len(rows))]
    row[rng.integers(0, len(row))] = odd[rng.integers(0, len(odd))]


def _reorder(rows, rng) -> None:
    a, b = rng.integers(0, len(rows), 2)
    rows[a], rows[b] = rows[b], rows[a]


def _encode(text: bytes, rng) -> bytes:
    words = text.decode("latin-1")
    kinds = ["utf-16", "utf-8-sig", "utf-32", "utf-16-le", "cp1252", "ascii"]
    return words.encode(kinds[rng.integers(0, len(kinds))], errors="replace")


def _line_ends(text: bytes, rng) -> bytes:
    return text.replace(b"\n", [b"\r\n", b"\r", b"\n\n"][rng.integers(0, 3)])


DAMAGES = [_flip, _cut, _drop, _double, _cells(_swap_columns), _cells(_put), _cells(_reorder), _encode, _line_ends]


def _damaged(text: bytes, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 3)):
        text = DAMAGES[rng.integers(0, len(DAMAGES))](text, rng) or b""
        if not text:
            break
    return text


def _series_text() -> bytes:
    time = pd.date_range("2024-03-01", periods=96, freq="6h").strftime("%Y-%m-%d %H:%M")
    rows = [f"{at},{100 + 7 * i % 31},{i / 3:.4f}" for i, at in enumerate(time)]
    return ("time,demand,price\n" + "\n".join(rows) + "\n").encode()


@pytest.mark.parametrize("kind", ["series", "weather"])
def test_a_damaged_table_is_refused_by_name_or_read_as_it_is(kind, tmp_path):
    text = _series_text() if kind == "series" else psm_text(weather_table(days=2)).encode()
    read = functools.partial(read_series, columns=["demand", "price"]) if kind == "series" else read_weather
    path, refused, unchanged = tmp_path / "damaged.csv", 0, 0
    for seed in range(EACH):
        path.write_bytes(_damaged(text, seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refusal, frame = None, None
            try:
                frame, _ = read(path)
            except DataError as error:
                refusal = str(error)
        if frame is None:
            assert "damaged.csv" in refusal, (seed, refusal)
            refused += 1
            continue
        numbers = frame.to_numpy(float)
        assert numbers.size > 0, seed
        assert np.isfinite(numbers).all(), seed
        assert frame.index.is_monotonic_increasing, seed
        assert frame.index.is_unique, seed
        unchanged += 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["damaged.csv"]  # nothing else was written
    assert refused > EACH // 4
    assert unchanged > EACH // 50


def test_a_damaged_policy_is_refused_by_name(tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    policy = ec.Policy(ec.Competitive(ec.ROBD(), 2.0), problem)
    whole, path = tmp_path / "whole.ecl2o", tmp_path / "damaged.ecl2o"
    ec.save(whole, policy)
    runner = ec.Runner(policy, [0.0])
    runner.step([1.0])
    runner.save_state(tmp_path / "whole.state")
    for name, read in (("whole.ecl2o", ec.load), ("whole.state", lambda path: ec.Runner.resume(policy, path))):
        text = (tmp_path / name).read_bytes()
        for seed in range(EACH if name.endswith("ecl2o") else 100):
            damaged = _damaged(text, seed)
            if damaged == text:
                continue
            path.write_bytes(damaged)
            with pytest.raises(ec.PolicyFileError, match=r"damaged\.ecl2o"):
                read(path)
