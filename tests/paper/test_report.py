"""The report of a made-up study: complete, well formed, self-contained, and true to its numbers."""

import dataclasses
import json
import re
import tomllib
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ecl2o.paper.figures import (
    draw_bars,
    draw_highest_tails,
    draw_moved_days,
    draw_shift,
    draw_tails,
    draw_trade_off,
    draw_week,
    draw_worst_day,
    find_units,
    report_figures,
    tail_curves,
)
from ecl2o.paper.report import settings_text, write_report
from ecl2o.paper.results import HEADINGS, find_best_row, format_cells, reported_rows, table_notes
from ecl2o.plots.folder import atomic_folder
from ecl2o.plots.style import REPORT_FORMATS, row_looks, save_figure
from ecl2o.policy import load
from paper.fake_study import LABELS, fake_study

VOID = {"meta", "img", "br", "hr", "link", "input"}


@pytest.fixture(scope="module")
def study():
    return fake_study()


@pytest.fixture(scope="module")
def folder(study, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "results"
    with atomic_folder(path) as fresh:
        write_report(study, {"study": study.study, **study.settings}, fresh, lambda *_: None)
    return path


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps what they hold."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.links, self.text, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[key] for key in ("src", "href", "srcset", "data", "action") if key in values]
        self.ids += [values["id"]] if "id" in values else []
        assert tag not in ("script", "link", "iframe")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(folder):
    parsed = Page()
    parsed.feed((folder / "report.html").read_text(encoding="utf-8"))
    parsed.close()
    return parsed


def test_the_folder_is_complete_and_nothing_else_is_left(study, folder):
    assert {entry.name for entry in folder.iterdir()} == {
        "results.json",
        "report.html",
        "config.toml",
        "figures",
        "policies",
    }
    expected = {f"{figure.stem}.{kind}" for figure in report_figures(study) for kind in REPORT_FORMATS}
    assert {entry.name for entry in (folder / "figures").iterdir()} == expected
    assert [entry.name for entry in folder.parent.iterdir()] == ["results"]
    for name, policy in study.policies.items():
        assert load(folder / "policies" / f"{name}.ecl2o").fingerprint == policy.fingerprint


def test_figures_are_pictures(folder):
    for path in (folder / "figures").glob("*.png"):
        with Image.open(path) as picture:
            assert picture.width >= 1200
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10
    for path in (folder / "figures").glob("*.svg"):
        assert "<svg" in path.read_text(encoding="utf-8")


def test_results_have_the_schema(study, folder):
    results = json.loads((folder / "results.json").read_text())
    assert results == study.as_json()
    assert set(results) == {
        *("format", "study", "preset", "weather", "problem", "seeds"),
        *("oracle", "test_days", "algorithms", "minus_pure_ml", "not_applicable", "trade_off", "seconds"),
    }
    assert set(results["algorithms"]) == set(LABELS)
    assert {point["family"] for point in results["trade_off"]} <= set(LABELS)
    for entry in results["algorithms"].values():
        assert set(entry) == {
            *("label", "parameters", "average_cost", "competitive_ratio", "third_worst_ratio", "tail_ratio"),
            *("prediction_error", "unconverged"),
        }
        assert entry["unconverged"] == {"steps": 0, "oracle": 0, "of": 0}
        assert set(entry["tail_ratio"]) == {"p90", "p95", "p99", "p99.5"}
        assert set(entry["average_cost"]) == {"mean", "std", "per_seed"}


def test_the_page_is_well_formed_and_needs_no_network(page, folder):
    assert page.open == []
    assert page.links
    assert all(link.startswith("data:") for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert "url(" not in text


def test_the_page_says_everything(page, study):
    text = " ".join("".join(page.text).split())
    for row in study.rows.values():
        assert row.what in text
        assert all(cell in text for cell in format_cells(row))
    for entry in study.skipped.values():
        assert f"{entry.label}does not apply: {entry.reason}" in text
        assert entry.what in text
    assert all(" ".join(figure.caption.split()) in text for figure in report_figures(study))
    assert all(heading in text for heading in HEADINGS)
    assert "li2022expert" in text
    assert "goel2019beyond" in text
    assert "made & up.csv" in text
    assert "quick run" not in text
    assert text.index(study.problem) < text.index("The lowest average cost is that of")
    assert re.search(r"jax\s*\d+\.\d+", text)


def test_the_configuration_is_the_settings(study, folder):
    config = tomllib.loads((folder / "config.toml").read_text())
    kept = {key: value for key, value in study.settings.items() if value is not None}
    assert config == {"study": study.study, **kept}


@pytest.mark.parametrize(
    "values",
    [
        {"a": 1, "b": -2.5, "c": 1e-30, "d": True, "e": 'quo"te\\ and\nline \t ü \x7f', "f": [1, 2], "g": ["x", "y"]},
        {"top": 1, "table": {"odd key": 1, "inner": {"deep": "x"}, "after": [0.5]}, "second": {}},
        {"large": float("inf"), "list": []},
    ],
)
def test_toml_is_read_as_it_was_written(values):
    assert tomllib.loads(settings_text(values | {"nothing": None})) == values


def test_toml_refuses_what_it_does_not_know():
    with pytest.raises(TypeError):
        settings_text({"when": object()})


def test_an_earlier_report_is_replaced_and_strangers_are_not(folder, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "results.json").write_text((folder / "results.json").read_text())
    with atomic_folder(target) as fresh:
        (fresh / "results.json").write_text("{}")
    assert (target / "results.json").read_text() == "{}"
    with pytest.raises(ValueError, match=r"holds results\.json"), atomic_folder(target):
        pytest.fail("the block must not run")
    (target / "results.json").unlink()
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis\.txt"), atomic_folder(target):
        pytest.fail("the block must not run")
    assert (target / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a folder"), atomic_folder(tmp_path / "file"):
        pytest.fail("the block must not run")


def test_a_picture_of_the_users_among_our_figures_is_not_lost(folder, tmp_path):
    target = tmp_path / "out"
    (target / "figures").mkdir(parents=True)
    (target / "results.json").write_text((folder / "results.json").read_text())
    (target / "figures" / "notes.md").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.md"), atomic_folder(target):
        pytest.fail("the block must not run")


def _fail(fresh):
    (fresh / "results.json").write_text("{}")
    raise RuntimeError("half way")


def test_failure_leaves_nothing_behind_and_the_old_report_in_place(folder, tmp_path):
    target = tmp_path / "deep" / "out"
    with pytest.raises(RuntimeError), atomic_folder(target) as fresh:
        _fail(fresh)
    assert list((tmp_path / "deep").iterdir()) == []
    target.mkdir()
    earlier = (folder / "results.json").read_text()
    (target / "results.json").write_text(earlier)
    with pytest.raises(RuntimeError), atomic_folder(target) as fresh:
        _fail(fresh)
    assert [entry.name for entry in target.parent.iterdir()] == ["out"]
    assert (target / "results.json").read_text() == earlier


def test_tail_curves_end_in_the_competitive_ratio(study):
    row = study.rows["ec-l2o"]
    curve = tail_curves(row, np.array([90.0, 95.0, 99.0, 99.5, 100.0])).mean(axis=1)
    tails = row.as_json()["tail_ratio"]
    np.testing.assert_allclose(curve[:-1], [tails[level]["mean"] for level in ("p90", "p95", "p99", "p99.5")])
    np.testing.assert_allclose(curve[-1], row.over_seeds("competitive_ratio").mean())


def test_the_bars_are_the_means(study):
    cost, ratio = draw_bars(study).axes
    rows = list(study.rows.values())
    for axes, figure in ((cost, "average_cost"), (ratio, "competitive_ratio")):
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
        np.testing.assert_allclose(ends, [row.over_seeds(figure).mean() for row in rows])
    assert [label.get_text() for label in cost.get_yticklabels()] == list(LABELS.values())


def test_the_best_rows_are_found(study):
    assert (
        find_best_row(study, "average_cost").name == "greedy"
    )  # the first after the oracle, as the factory makes them


def test_a_quick_run_leaves_networks_out_of_its_table_and_says_so():
    quick = fake_study(quick=True)
    for row in quick.rows.values():
        if row.name in ("seasonal", "guarded"):  # learned, but not networks
            row.parameters["advisor"] = "OnlineRidge"
    assert [row.name for row in reported_rows(quick)] == ["oracle", "greedy", "r-obd", "rhc", "seasonal", "guarded"]
    (note,) = table_notes(quick)
    assert "quick run" in note
    assert "EC-L2O" in note
    labels = [row.label for row in reported_rows(quick)]
    assert [label.get_text() for label in draw_bars(quick).axes[0].get_yticklabels()] == labels
    for draw in (draw_tails, draw_trade_off):
        assert {line.get_label() for line in draw(quick).axes[0].get_lines()} <= set(labels)
    stems = [[figure.stem for figure in report_figures(one)] for one in (quick, fake_study())]
    assert set(stems[1]) - set(stems[0]) == {"highest-tails", "worst-day"}
    (paired,) = table_notes(fake_study())
    more = fake_study().paired_differences()["ec-l2o"]
    assert f"EC-L2O {more['mean']:+.3f} ± {more['standard_error']:.3f}" in paired


def test_the_week_shows_the_winner_and_the_expert(study):
    labels = [line.get_label() for line in draw_week(study).axes[0].get_lines()]
    assert labels == ["Oracle's action", "Greedy's action", "R-OBD's action"]


def test_captions_say_what_is_easily_misread(study):
    captions = {figure.stem: figure.caption for figure in report_figures(study)}
    assert "R-OBD's line, at 3.70" in captions["bounds"]
    assert "worst case exactly 1.73" in captions["bounds"]
    assert "moves through" in captions["worst-day"]
    still = dataclasses.replace(study.worst_day, contexts=np.full((24, 1), 0.4))
    captions = {figure.stem: figure.caption for figure in report_figures(dataclasses.replace(study, worst_day=still))}
    assert "0.0%" in captions["worst-day"]


def test_power_is_shown_in_its_unit(study):
    units = find_units(study)
    assert units.context == "power (kW)"
    largest = float(study.contexts.values.max())
    np.testing.assert_allclose(units.factor * largest, largest / study.contexts.scale / 1000)
    filled = draw_week(study).axes[0].collections[0].get_datalim(draw_week(study).axes[0].transData).y1
    assert 10 < filled <= 20.0  # kW: 0.8 at a scale of 4e-5 per watt


def test_actions_of_several_dimensions_are_shown_in_total():
    study = fake_study(study="right-sizing", dim=3, names=("oracle", "r-obd", "ec-l2o"), seeds=1)
    week, day = draw_week(study), draw_worst_day(study)
    assert [axes.get_ylabel() for axes in week.axes] == ["requests (thousands/s)", "racks on, all kinds"]
    drawn = day.axes[1].get_lines()[-1].get_ydata()
    np.testing.assert_allclose(drawn, study.worst_day.actions["ec-l2o"].sum(axis=1))


def test_infinite_ratios_are_drawn_and_written(tmp_path):
    study = fake_study(names=("oracle", "r-obd", "ec-l2o"), seeds=2, worst=np.inf)
    assert format_cells(study.rows["ec-l2o"])[2] == "∞"
    assert study.as_json()["algorithms"]["ec-l2o"]["competitive_ratio"]["mean"] == "inf"
    for figure in (draw_bars(study), draw_tails(study)):
        assert isinstance(figure, Figure)
        save_figure(figure, tmp_path / "infinite.png")


def test_no_two_rows_look_alike_without_colour():
    drawn = row_looks([*LABELS, "lcp", "obd", "ogd"])
    assert len({look.marker for look in drawn.values()}) == len(drawn)


def test_figures_are_refused_where_they_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="must end in"):
        save_figure(Figure(), tmp_path / "figure.docx")
    with pytest.raises(FileNotFoundError):
        save_figure(Figure(), tmp_path / "missing" / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_every_day_is_on_the_map_of_its_quarter(study):
    panels = draw_shift(study).axes
    counts = [[len(points.get_offsets()) for points in axes.collections] for axes in panels]
    split = study.contexts.split
    assert [count[0] for count in counts] == [split.training_days + split.validation_days] * 3
    assert sum(count[1] for count in counts) == study.test_days
    again = draw_shift(study).axes
    np.testing.assert_array_equal(panels[0].collections[1].get_offsets(), again[0].collections[1].get_offsets())


def test_moved_days_are_drawn_at_their_amounts_and_only_where_there_are_some(study):
    assert "moved-days" not in [figure.stem for figure in report_figures(study)]
    cost = {"r-obd": {"mean": 1.7, "std": 0.0}, "pure-ml": {"mean": 1.2, "std": 0.1}}
    amounts = [("offset", 0.0), ("offset", 0.2), ("offset", -0.1), ("factor", 2.0), ("factor", 0.5)]
    moved = [{"what": what, "amount": amount, "distance": abs(amount), "cost": cost} for what, amount in amounts]
    shifted = dataclasses.replace(study, extra={"shift": {"moved": moved}})
    assert "moved-days" in [figure.stem for figure in report_figures(shifted)]
    offsets, factors = (axes.get_lines()[0].get_xdata().tolist() for axes in draw_moved_days(shifted).axes)
    assert (offsets, factors) == ([-0.1, 0.0, 0.2], [0.5, 1.0, 2.0])


def test_the_highest_tails_end_in_the_competitive_ratio(study):
    for axes in draw_highest_tails(study).axes:
        for line in axes.get_lines():
            row = next(row for row in study.rows.values() if row.label == line.get_label())
            assert line.get_ydata()[-1] == pytest.approx(row.over_seeds("competitive_ratio").mean())


def test_days_begin_at_midnight_whatever_the_zone(study):
    local = dataclasses.replace(study.contexts, time=study.contexts.time.tz_localize("Etc/GMT+5"))
    day = dataclasses.replace(study.worst_day, time=study.worst_day.time.tz_localize("Etc/GMT+5"))
    zoned = dataclasses.replace(study, contexts=local, worst_day=day)
    for draw, line in ((draw_week, 0), (draw_worst_day, 1)):
        first = draw(zoned).axes[0].get_lines()[line].get_xdata(orig=False)[0]
        assert first % 1 == 0  # Matplotlib counts days
