"""The same sites, one by one, as one program, in two processes, interrupted, and with broken ones among them."""

import dataclasses
import operator
import os
import signal
import threading
import time

import numpy as np
import pytest

from ecl2o.exceptions import ChunkFailedError
from ecl2o.fitting.pipeline import fit_contexts
from ecl2o.fitting.read import SeriesReader
from ecl2o.fleet import evaluate_sites, fit_sites
from ecl2o.fleet.cluster import PROCESS_BYTES, Chunk, cluster, make_chunks, run_chunk, run_pieces
from ecl2o.fleet.fit_and_evaluate import make_site_chunks, read_to_test
from ecl2o.fleet.folder import ERRORS, FITTED, evaluate_into, fit_into
from ecl2o.fleet.sites import SiteResult, find_sites, read_sites

from .conftest import SETTINGS, SPLIT, write_manifest, write_series
from .test_sites import broken_sites

FIGURES = ("validation_cost", "average_cost", "competitive_ratio", "live_ratio", "r_obd_cost")


def read(manifest):
    from pathlib import Path

    return list(read_sites(find_sites(manifest), SETTINGS, SeriesReader(Path())))


@pytest.fixture(scope="module")
def fitted(manifest):
    """All five in this process."""
    return fit_sites(manifest, SETTINGS)


def test_many_sites_are_each_fitted_as_one_alone(manifest, fitted):
    """Site 3 in a chunk of five, and by `fit_contexts`; the sizes of the five are 1 to 10,000."""
    site = read(manifest)[3]
    alone = fit_contexts(site.contexts, site.settings)
    row, entries = fitted[3].row, alone.rows
    assert row["validation_cost"] == pytest.approx(alone.chosen.average_cost, rel=1e-9)
    assert row["average_cost"] == pytest.approx(alone.own.average_cost, rel=1e-9)
    assert row["competitive_ratio"] == pytest.approx(alone.own.competitive_ratio, rel=1e-9)
    assert row["rhc_cost"] == pytest.approx(entries["rhc"].average_cost, rel=1e-9)
    assert row["promise_kept"] is True
    assert fitted[3].policy.contract.promise.ratio == 2.5
    assert fitted[0].policy.contract.promise.ratio == 2.2
    np.testing.assert_array_equal(fitted[3].policy.history, alone.policy.history)


def test_sites_that_can_learn_different_things_are_no_program(tmp_path):
    """A larger alpha needs later targets: with 42 training days one of 1000 leaves too few for the Fourier regression."""
    rows = [{"name": f"alpha {alpha}", "file": "a.csv", "alpha": f"{alpha}"} for alpha in (1, 2, 1000)]
    write_series(tmp_path / "a.csv", 0, days=60)
    sites = read(write_manifest(tmp_path / "manifest.csv", [row | SPLIT | {"training_days": "42"} for row in rows]))
    assert len(make_site_chunks(sites)) == 1
    sites = [dataclasses.replace(each, settings=dataclasses.replace(each.settings, advisor="auto")) for each in sites]
    assert [chunk.count for chunk in make_site_chunks(sites)] == [2, 1]


def test_two_processes_give_the_same_bits(manifest, fitted, client):
    there = fit_sites(manifest, SETTINGS, client)
    assert [site.row for site in there] == [site.row for site in fitted]
    assert [site.policy.fingerprint for site in there] == [site.row["policy"] for site in fitted]


def test_a_piece_that_fails_is_lost_alone(client):
    found = dict(run_pieces(operator.floordiv, [(1, 1), (1, 0)], client))
    assert found[0] == 1
    assert isinstance(found[1], ChunkFailedError)
    assert "ZeroDivisionError" in str(found[1])


def test_broken_sites_are_rows_and_the_others_are_fitted(manifest, tmp_path, fitted):
    """What a reader sees, a series that never changes, and a promise that nobody can keep."""
    constant = write_series(tmp_path / "constant.csv", 1)
    lines = constant.read_text().splitlines()
    constant.write_text("\n".join([lines[0], *(line.split(",")[0] + ",4" for line in lines[1:])]))
    broken = broken_sites(tmp_path)
    broken += [
        ({"name": "constant", "file": "constant.csv", **SPLIT}, "never change"),
        ({"name": "promise", "file": "good.csv", "promise": "1.01", **SPLIT}, "cannot be promised"),
    ]
    good = [{"name": f"site {i}", "file": str(manifest.parent / f"{i}.csv"), **SPLIT} for i in range(5)]
    for i, row in enumerate(good):
        row |= {"alpha": str(4 + i), "promise": "2.5" if i else ""}
    rows = fit_into(tmp_path / "out", read(write_manifest(tmp_path / "m.csv", [row for row, _ in broken] + good)))
    for row, (told, words) in zip(rows, broken, strict=False):
        assert (row["name"], row["status"]) == (told["name"], "failed")
        assert words in row["reason"]
    assert [row["policy"] for row in rows[-5:]] == [site.row["policy"] for site in fitted]
    assert len(list((tmp_path / "out" / "policies").iterdir())) == 5
    log = (tmp_path / "out" / ERRORS).read_text()
    assert all(f"{row['name']}: {row['reason']}\nTraceback" in log for row in rows[:-5])


def test_a_run_that_goes_on_does_what_is_missing(manifest, tmp_path, fitted, monkeypatch):
    import ecl2o.fleet.fit_and_evaluate as fitting

    asked = []

    def instead(sites):
        asked.append(list(dict.fromkeys(site.name for site in sites)))
        return [site for site in fitted if site.name in asked[-1]]

    monkeypatch.setattr(fitting, "fit_together", instead)
    sites, memory = read(manifest), PROCESS_BYTES + 2 * fitting._bytes(read(manifest)[0])
    first = fit_into(tmp_path / "out", sites, memory=memory)
    assert asked == [["site 0", "site 1"], ["site 2", "site 3"], ["site 4"]]
    asked.clear()
    assert fit_into(tmp_path / "out", sites, memory=memory) == first
    assert asked == []
    (tmp_path / "out" / "policies" / "site 3.ecl2o").unlink()
    with (tmp_path / "out" / FITTED).open("a") as ledger:
        ledger.write('{"name": "site 4", "stat')  # ended while it wrote
    changed = [*sites[:1], dataclasses.replace(sites[1], settings=dataclasses.replace(SETTINGS, alpha=9.0)), *sites[2:]]
    fit_into(tmp_path / "out", changed, memory=memory)
    assert asked == [["site 0", "site 1"], ["site 2", "site 3"]]


def test_a_foreign_folder_is_not_written_to(tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ValueError, match=FITTED):
        fit_into(tmp_path, [])


def test_chunks_do_not_exceed_the_memory_and_have_one_shape():
    chunks = make_chunks(list(range(7)), lambda n: 0, lambda n: 10, PROCESS_BYTES + 35)
    assert [(chunk.items, chunk.count) for chunk in chunks] == [((0, 1, 2), 3), ((3, 4, 5), 3), ((6, 6, 6), 1)]
    with pytest.raises(ValueError, match="900 MB"):
        make_chunks([1], lambda n: 0, lambda n: 10, PROCESS_BYTES + 9)


def test_a_site_that_fails_in_a_chunk_fails_alone(manifest):
    """Training that fails for one of three: the other two are fitted one by one."""
    sites = read(manifest)[:3]

    def failing(items):
        if any(site.name == "site 1" for site in items):
            raise FloatingPointError("the loss became nan")
        return [SiteResult(site.name, {"name": site.name, "status": "fitted"}) for site in items]

    found = run_chunk(failing, Chunk(tuple(sites), 3))
    assert [site.row["status"] for site in found] == ["fitted", "failed", "fitted"]
    assert found[1].row["reason"] == "the loss became nan"
    assert "in failing" in found[1].trace


def test_policies_are_tested_together_as_one_by_one(manifest, fitted, tmp_path):
    from ecl2o.evaluation.comparison import evaluate_contender, make_contender
    from ecl2o.fitting.tasks import policy_test_days

    policies = {site.name: site.policy for site in fitted}
    told = [{"name": f"site {i}", "file": str(manifest.parent / f"{min(i, 4)}.csv")} for i in range(6)]
    manifest = write_manifest(tmp_path / "six.csv", told)
    rows = evaluate_sites(manifest, policies, days=6)
    assert rows[5] == {"name": "site 5", "status": "failed", "reason": "site 5 has no policy."}
    assert [row["status"] for row in rows[:5]] == ["tested"] * 5
    (site, *_) = read_to_test(find_sites(manifest), policies, SeriesReader(manifest), 6)
    bed, _ = policy_test_days(site.policy, site.contexts, 6)
    entry = evaluate_contender("policy", make_contender(site.policy.agent, site.policy.problem), bed)
    assert rows[0]["average_cost"] == pytest.approx(entry.average_cost, rel=1e-9)
    assert rows[0]["days"] == 6
    assert rows[0]["promise_kept"] is True
    assert rows[0]["screened"] == 0
    sites = list(read_to_test(find_sites(manifest), policies, SeriesReader(manifest), 6))
    assert evaluate_into(tmp_path / "tested", sites) == rows


def test_fleets_are_tested_on_readings_as_the_policy_screens_them(manifest, fitted, tmp_path):
    """A reading a thousand times too large: `read_to_test` replaces it by the one before, and says so in the row."""
    from pathlib import Path

    lines = (manifest.parent / "1.csv").read_text().splitlines()
    time_of, value = lines[60].split(",")
    (tmp_path / "bad.csv").write_text("\n".join([*lines[:60], f"{time_of},{1000 * float(value)}", *lines[61:]]) + "\n")
    bad = write_manifest(tmp_path / "m.csv", [{"name": "site 1", "file": "bad.csv"}])
    (site,) = read_to_test(find_sites(bad), {"site 1": fitted[1].policy}, SeriesReader(Path()), 6)
    assert site.screened == 1
    assert site.contexts.values[59] == site.contexts.values[58]


def test_the_cluster_of_another_process_gives_the_same_bits(manifest, fitted, scheduler):
    with cluster(scheduler) as there:
        found = fit_sites(manifest, SETTINGS, there)
    assert [site.row for site in found] == [site.row for site in fitted]


def test_a_warmup_runs_the_programs_of_the_tests(manifest):
    """What needs no training has the structure, the shapes and the days of what is chosen."""
    import ecl2o.fleet.fit_and_evaluate as fitting

    sites = read(manifest)
    chosen = fitting.select_candidates([site.contexts for site in sites], [site.settings for site in sites])
    untrained = fitting.Selection.untrained(sites[0].contexts, sites[0].settings)
    wanted = {fitting.structure_of((choice.contender, choice.test_days())) for choice in chosen}
    assert wanted <= {fitting.structure_of((choice.contender, choice.test_days())) for choice in untrained}
    fitting.compile_tests(Chunk(tuple(sites), 5))


def test_workers_compile_while_the_driver_still_reads(manifest, tmp_path, fitted, client, monkeypatch):
    """Twice as many sites are expected as there are, so that two chunks of five are; the first of them starts the warmup."""
    import ecl2o.fleet.fit_and_evaluate as fitting
    import ecl2o.fleet.folder as folder

    sites, started = read(manifest), []

    def watched(site, *told):
        started.append(fitting.start_warmup(site, *told))
        return started[-1]

    def asked_for():
        for number, site in enumerate(sites):
            assert len(started) == min(number, 1)
            yield site

    monkeypatch.setattr(folder, "start_warmup", watched)
    memory = PROCESS_BYTES + len(sites) * fitting._bytes(sites[0])
    rows = fit_into(tmp_path / "out", asked_for(), client, memory, expected=2 * len(sites))
    assert rows == [site.row for site in fitted]
    (futures,) = started[0].values()
    assert [future.exception(timeout=120) for future in futures] == [None, None]
    assert len({place for places in client.who_has(futures).values() for place in places}) == 2
    assert fitting.start_warmup(sites[0], len(sites), client, memory) == {}  # one chunk is all
    assert fitting.start_warmup(sites[0], 2 * len(sites), None, memory) == {}


# The last that uses the cluster: whoever takes the place of the killed one knows no programs.
def test_a_killed_worker_loses_nothing(client):
    """A worker is ended by the system in the middle of eight pieces: all eight are done."""
    before = set(client.run(os.getpid).values())
    victim = min(before)
    threading.Timer(0.6, lambda: os.kill(victim, signal.SIGKILL)).start()
    found = dict(run_pieces(time.sleep, [(0.5,)] * 8, client))
    assert found == dict.fromkeys(range(8))
    client.wait_for_workers(2, timeout=60)
    assert victim not in client.run(os.getpid).values()
