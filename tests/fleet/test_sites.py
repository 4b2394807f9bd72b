"""From a folder, a glob or a manifest to sites; what is wrong with one of them is its own matter."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ecl2o.data import Contexts, Split
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.fleet.sites import LoadedSite, SiteResult, find_sites, read_sites

from .conftest import SETTINGS, SPLIT, write_manifest, write_series


def test_a_folder_and_a_glob_are_the_same_sites(tmp_path):
    for number in range(3):
        write_series(tmp_path / f"{number}.csv", number)
    (tmp_path / "notes.txt").write_text("not a series")
    assert [order.name for order in find_sites(tmp_path)] == ["0", "1", "2"]
    assert find_sites(tmp_path) == find_sites(f"{tmp_path}/*.csv")
    assert [order.name for order in find_sites(str(tmp_path / "[12].csv"))] == ["1", "2"]


def test_a_manifest_says_what_is_different(tmp_path):
    write_series(tmp_path / "a.csv", 0)
    row = {
        "name": "a",
        "file": "a.csv",
        "alpha": "7",
        "promise": "3",
        "per": "week",
        "contexts": "0:9",
        "plausible": "0:8",
        **SPLIT,
    }
    path = write_manifest(tmp_path / "sites.csv", [row, {"name": "b", "file": "a.csv", **SPLIT}])
    a, b = read_sites(find_sites(path), FitSettings(), SeriesReader(Path()))
    assert a.settings == FitSettings(7.0, promise=PromiseSpec(3.0, "week", contexts=(0.0, 9.0)), plausible=(0.0, 8.0))
    assert b.settings == FitSettings()
    assert a.contexts.split == Split(14, 4)
    assert a.digest != b.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,path\na,a.csv\n", "file"),
        ("name,file,alhpa\na,a.csv,3\n", "alhpa"),
        ("name,file\n", "sites.csv"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "sites.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        find_sites(path)


def test_no_sites_are_refused(tmp_path):
    with pytest.raises(ValueError, match=str(tmp_path)):
        find_sites(tmp_path)
    with pytest.raises(ValueError, match=r"\*.csv"):
        find_sites(tmp_path / "*.csv")


def broken_sites(folder: Path) -> list[tuple[dict[str, str], str]]:
    """Sites broken in all ways that a reader can see, and what is said of each."""
    good = write_series(folder / "good.csv", 1)
    lines = good.read_text().splitlines()
    (folder / "empty.csv").write_text("")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 40)
    (folder / "text.csv").write_text("\n".join([*lines[:9], "2024-01-03 06:00:00,many", *lines[10:]]))
    (folder / "gap.csv").write_text("\n".join([*lines[:9], *lines[12:]]))
    write_series(folder / "short.csv", 1, days=10)
    rows = [
        ({"name": "missing", "file": "nowhere.csv"}, "nowhere.csv"),
        ({"name": "empty", "file": "empty.csv"}, "empty"),
        ({"name": "binary", "file": "binary.csv"}, "binary.csv"),
        ({"name": "text", "file": "text.csv", "column": "demand"}, "many"),
        ({"name": "gap", "file": "gap.csv"}, "gap.csv"),
        ({"name": "short", "file": "short.csv"}, "10 whole days"),
        ({"name": "column", "file": "good.csv", "column": "supply"}, "supply"),
        ({"name": "alpha", "file": "good.csv", "alpha": "ten"}, "alpha must be a number, got 'ten'"),
        ({"name": "per", "file": "good.csv", "promise": "2", "per": "year"}, "per must be one of"),
        ({"name": "a/b", "file": "good.csv"}, "name must"),
    ]
    return [({**row, **SPLIT}, words) for row, words in rows]


def test_each_broken_site_says_what_is_wrong_with_it(tmp_path):
    broken = broken_sites(tmp_path)
    twice = {"name": "good", "file": "good.csv", **SPLIT}
    path = write_manifest(tmp_path / "sites.csv", [row for row, _ in broken] + [twice, twice])
    *failed, good, again = read_sites(find_sites(path), SETTINGS, SeriesReader(Path()))
    for site, (row, words) in zip(failed, broken, strict=True):
        assert isinstance(site, SiteResult), row
        assert (site.name, site.row["status"]) == (row["name"], "failed")
        assert words in site.row["reason"]
        assert "\n" not in site.row["reason"]
    assert good.name == "good"
    assert again.row == {"name": "good", "status": "failed", "reason": "the name 'good' is used twice."}


def test_a_digest_is_of_all_that_a_policy_depends_on():
    time = pd.date_range("2021-01-01", periods=100 * 24, freq="h")
    contexts = Contexts(np.arange(100.0 * 24)[:, None], time)
    others = {"split": Split(50, 30)}, {"steps_per_day": 12}, {"values": contexts.values + 1}
    sites = [LoadedSite("a", dataclasses.replace(contexts, **other), FitSettings()) for other in ({}, *others)]
    sites.append(LoadedSite("a", contexts, FitSettings(alpha=3.0)))
    assert len({site.digest for site in sites}) == 5
    assert LoadedSite("renamed", contexts, FitSettings()).digest == sites[0].digest
