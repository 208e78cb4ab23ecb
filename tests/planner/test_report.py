"""Reports of a plan made by hand: grouping, figures, and all of them on every kind of report."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from costmodels.errors import InputError
from costmodels.step.memory import HOLDERS
from costmodels.step.training import Training
from planner.cli.screen import show, write
from planner.plan import Baseline, LayerPlan, Plan, SearchSummary
from planner.report import figures, report_kind, rivals, sentences, svg, write_report
from planner.report.charts import split_index
from planner.report.console import show_list
from planner.report.html import report_text as html_page
from planner.report.line import plan_line
from planner.report.markdown import report_text as markdown_text
from planner.report.runs import group_runs, letter, main_split, runs_of_plan, shares
from planner.report.terminal import show_plan

SHAPE = (4, 16)


def layer(name: str, kind: str = "conv", forward: float = 1e-3, **degrees: tuple[int, int]):
    return LayerPlan(
        name=name,
        kind=kind,
        degrees=degrees,
        shape=SHAPE,
        forward_s=forward,
        backward_s=2 * forward,
        update_s=0.0,
        halo_s=0.0005 if "height" in degrees else 0.0,
        reduction_s=0.0,
        shuffle_s=0.0,
        gradient_s=0.0002,
        weights_bytes=1024.0,
        gradients_bytes=1024.0,
        state_bytes=1024.0,
        output_bytes=2048.0,
        saved_bytes=0.0,
    )


def make_plan(**changes) -> Plan:
    rows = [
        layer("conv1", height=(4, 1), sample=(1, 16)),
        layer("relu1", "activation", 1e-4, height=(4, 1), sample=(1, 16)),
        layer("conv2", sample=(4, 16)),
        layer("fc", "linear", 1e-3, filter=(4, 1), sample=(1, 16)),
        layer("relu2", "activation", 1e-4, channel=(4, 1), sample=(1, 16)),
        layer("fc2", "linear", 1e-3, channel=(4, 1), sample=(1, 16)),
        layer("loss <&|>", "loss", 1e-5, sample=(4, 16)),
    ]
    blocking = sum(row.halo_s for row in rows)
    compute = sum(row.forward_s + row.backward_s for row in rows)
    fields = {
        "model": "handmade",
        "input_shape": {"channel": 3, "height": 224, "width": 224},
        "global_batch_size": 2048,
        "cluster": "lassen",
        "device": "v100-16gb",
        "gpus": 64,
        "shape": SHAPE,
        "level_names": ("host", "network"),
        "host_level": "host",
        "training": Training(),
        "hashes": {"network": "ab" * 32, "cluster": "cd" * 32, "training": "ef" * 32},
        "runtime": "ddp",
        "step_time_s": compute + blocking + 0.0047,
        "breakdown_s": {
            "compute": compute,
            "update": 0.0007,
            "slowdown": 0.0004,
            "halo": blocking,
            "reduction": 0.0,
            "shuffle": 0.0,
            "parameter": 0.0,
            "gradient": 0.003,
            "host": 0.0,
            "waiting": 0.0006,
        },
        "hidden_s": {
            "halo": 0.0,
            "reduction": 0.0,
            "shuffle": 0.0,
            "parameter": 0.0,
            "gradient": 0.0042,
            "host": 0.0,
        },
        "memory_bytes": {"weights": 2.0 * 2**30, "activations": 5.5 * 2**30, "reserved": 2.0**29},
        "memory_moment": "backward of conv2",
        "memory_capacity_bytes": 16.0 * 2**30,
        "communication_bytes": 3.0 * 2**20,
        "search": SearchSummary(
            solver="elimination",
            status="feasible",
            lower_bound_s=0.015,
            proven_optimal=False,
            gap=0.0321,
            num_sensible=4321,
            num_candidates=1234,
            cap=64,
            num_costed=9,
        ),
        "layers": {row.name: row for row in rows},
        "baselines": (
            Baseline(
                name="data", step_time_s=0.05, peak_memory_bytes=2.0**33, fits=True, reason=""
            ),
            Baseline(
                name="filter",
                step_time_s=0.5,
                peak_memory_bytes=2.0**35,
                fits=False,
                reason="16 GiB over the memory",
            ),
            Baseline(
                name="spatial",
                step_time_s=None,
                peak_memory_bytes=None,
                fits=False,
                reason="layer 'fc' has 1 x 1 positions",
            ),
        ),
        "compute_sources_s": {"surface": 0.009, "roofline": 0.001},
        "provenance": {
            "conv forward": "surface of https://example.org/rows, 8% off",
            "add": "roofline",
        },
        "fallbacks": ("10.0% of the computation is estimated by the roofline",),
        "defaults": ("cluster lassen, since none was given",),
        "command": "planner optimize handmade --gpus 64",
    }
    return Plan(**{**fields, **changes})


def terminal(plan: Plan, width: int = 80, *, everything: bool = False, **options) -> str:
    file = StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, **options)
    show_plan(plan, console, everything=everything)
    return file.getvalue()


def test_runs_join_only_neighbours_that_are_split_alike() -> None:
    a = [layer(f"a{i}", sample=(4, 16)) for i in range(3)]
    b = [layer("b", height=(4, 1), sample=(1, 16))]
    assert [len(run) for run in group_runs([*a, *b, *a[:1]])] == [3, 1, 1]
    assert group_runs([]) == []


def test_runs_tell_levels_apart() -> None:
    inside, across = layer("x", height=(4, 1)), layer("y", height=(1, 4))
    assert len(group_runs([inside, across])) == 2


def test_runs_ignore_dims_that_are_split_one_way() -> None:
    assert (
        len(group_runs([layer("x", sample=(4, 1)), layer("y", sample=(4, 1), width=(1, 1))])) == 1
    )


def test_features_of_outputs_are_one_split_but_summed_channels_are_not() -> None:
    runs = runs_of_plan(make_plan())
    assert [run.span for run in runs] == [
        "conv1 .. relu1",
        "conv2",
        "fc .. relu2",
        "fc2",
        "loss <&|>",
    ]
    assert runs[2].label == "host: filter/channel 4 | network: sample 16"
    assert runs[3].label == "host: channel 4 | network: sample 16"
    # a split that comes back has the same letter
    assert runs[1].key == runs[4].key


def test_letters_follow_time_and_all_time_is_accounted_for() -> None:
    plan = make_plan()
    rows = shares(plan)
    times = [seconds for _, _, seconds in rows.values()]
    assert list(rows) == ["A", "B", "C", "D"]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(sum(row.time for row in plan.layers.values()))
    assert sum(number for _, number, _ in rows.values()) == len(plan.layers)


def test_letters_are_the_inverse_of_their_numbers() -> None:
    assert [letter(i) for i in (0, 25, 26, 51, 52, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "AZ",
        "BA",
        "ZZ",
        "AAA",
    ]
    assert all(split_index(letter(i)) == i for i in range(1000))


def test_rows_sum_to_the_step() -> None:
    plan = make_plan()
    rows = figures.step_rows(plan)
    assert sum(row.value for row in rows) == pytest.approx(plan.step_time_s)
    assert sum(row.share for row in rows) == pytest.approx(1.0)


def test_speed_ups_are_of_the_plan_over_each_strategy() -> None:
    plan = make_plan()
    data, filters, spatial = rivals.usual_rivals(plan)
    assert data.speed_up == pytest.approx(0.05 / plan.step_time_s)
    assert filters.verdict == "does not fit"
    assert spatial.speed_up is None
    assert spatial.verdict == "cannot be used"
    assert rivals.best_rival(plan) == data


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.0, "as fast as data"),
        (1.05, "5.0 % faster"),
        (0.95, "5.0 % slower"),
        (0.5, "2.00x as slow as data"),
        (2.0, "2.00x as fast as data"),
    ],
)
def test_the_comparison_says_faster_and_slower_rightly(factor: float, words: str) -> None:
    plan = make_plan()
    data = replace(plan.baselines[0], step_time_s=plan.step_time_s * factor)
    assert words in rivals.rival_sentence(dataclasses.replace(plan, baselines=(data,)))


def test_quality_says_what_is_proven() -> None:
    plan = make_plan()
    optimal = replace(plan.search, proven_optimal=True, gap=0.0, status="optimal")
    given = replace(plan.search, status="given", lower_bound_s=0.0)
    stopped = replace(plan.search, stopped_by="time limit")
    assert "gap 3.2 %" in sentences.quality_sentence(plan)
    assert "15 ms" in sentences.quality_sentence(plan)
    assert "proven optimal" in sentences.quality_sentence(dataclasses.replace(plan, search=optimal))
    assert "nothing was searched" in sentences.quality_sentence(
        dataclasses.replace(plan, search=given)
    )
    assert "time limit" in sentences.quality_sentence(dataclasses.replace(plan, search=stopped))


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ({"channel": 4, "depth": 8, "height": 8, "width": 8}, "volumes"),
        ({"sequence": 1024}, "sequences"),
        ({"channel": 4}, "samples"),
    ],
)
def test_samples_are_called_by_their_axes(axes: dict[str, int], word: str) -> None:
    assert figures.sample_word(axes) == word


def test_small_shares_never_look_like_nothing() -> None:
    assert figures.percent(1e-6) == "< 0.1 %"
    assert figures.percent(0.0) == "0.0 %"


def key_figures(plan: Plan) -> list[str]:
    """What every report must show."""
    rows = figures.step_rows(plan) + figures.memory_rows(plan)
    texts = [row.label for row in rows]
    texts += [figures.seconds(row.value) for row in figures.step_rows(plan)]
    texts += [figures.size(row.value) for row in figures.memory_rows(plan)]
    texts += [figures.percent(row.share) for row in rows]
    texts += [run.label for run in runs_of_plan(plan)]
    texts += [figures.seconds(plan.step_time_s), figures.count(plan.throughput)]
    texts += ["4.2 ms", "3 MiB", "8 GiB", "gap 3.2 %", "1,234", "4,321", "backward of conv2"]
    texts += ["data", "filter", "spatial", "16 GiB over the memory", "does not fit"]
    texts += [figures.speed_up(r.speed_up) for r in rivals.usual_rivals(plan) if r.speed_up]
    return [*texts, *plan.fallbacks, *plan.defaults]


def test_the_terminal_shows_all_key_figures_within_80_columns() -> None:
    plan = make_plan()
    text = terminal(plan)
    words = " ".join(text.split())
    for figure in key_figures(plan):
        assert " ".join(figure.split()) in words
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text


def test_zeros_are_shown_when_everything_is_asked_for() -> None:
    plan = make_plan()
    zeros = [row.label for row in figures.step_rows(plan, zeros=True) if not row.value]
    assert zeros == [
        *("reductions, exposed", "shuffles, exposed", "gathering of weights, exposed"),
        "copies to and from the host, exposed",
    ]
    whole = terminal(plan, everything=True)
    for label in zeros:
        assert re.search(rf"^  {label} ", terminal(plan), re.M) is None
        assert re.search(rf"^  {label} +0 +0.0 % *$", whole, re.M)
    for name in plan.layers:
        assert re.search(rf"^  {re.escape(name)} +[A-D] +\S", whole, re.M), name


def test_colours_only_on_a_terminal_and_never_with_no_color(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[1;32m" in terminal(make_plan(), force_terminal=True)
    assert not re.search(
        r"\x1b\[[\d;]*3\dm", terminal(make_plan(), force_terminal=True, no_color=True)
    )


def test_many_runs_are_cut_to_the_main_ones_on_the_terminal() -> None:
    rows = [
        layer(
            f"l{i}",
            forward=1e-3 * (i + 1),
            **({"sample": (4, 16)} if i % 2 else {"height": (4, 1)}),
        )
        for i in range(60)
    ]
    text = terminal(make_plan(layers={row.name: row for row in rows}))
    assert "and 36 shorter runs" in text
    assert "\n  l59 " in text
    assert "\n  l0 " not in text
    whole = terminal(make_plan(layers={row.name: row for row in rows}), everything=True)
    assert "\n  l0 " in whole
    assert "shorter runs" not in whole


def test_a_plan_that_does_not_fit_says_so_everywhere() -> None:
    plan = make_plan(memory_capacity_bytes=4.0 * 2**30)
    for text in (terminal(plan), markdown_text(plan), html_page(plan), plan_line(plan)):
        assert "not fit" in text.lower()


def test_the_summary_is_one_line_with_the_main_split() -> None:
    line = plan_line(make_plan())
    assert "\n" not in line
    assert main_split(make_plan()) in line
    assert main_split(make_plan()).startswith("sample 16 x height 4 (")


def test_splits_that_read_the_same_are_one_of_the_summary() -> None:
    """At unlike levels they were two of it: "channel 4 (39 %), channel 4 (20 %)"."""
    rows = [
        layer("conv1", sample=(1, 16)),
        layer("conv2", channel=(4, 1)),
        layer("conv3", channel=(1, 4)),
    ]
    text = main_split(make_plan(layers={row.name: row for row in rows}))
    assert text == "channel 4 x replicated 16 (67 %), sample 16 x replicated 4 (33 %)"


class Page(HTMLParser):
    """Checks that tags are balanced, and gathers text and attributes."""

    VOID = frozenset({"meta", "rect", "line", "path", "circle", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)


def test_the_page_is_well_formed_and_shows_all_figures() -> None:
    plan = make_plan()
    page = Page(html_page(plan))
    assert page.open == []
    words = " ".join(" ".join(page.words).split())
    for figure in key_figures(plan):
        assert " ".join(figure.split()) in words
    for row in plan.layers.values():
        assert row.name in words
    assert plan.command in words
    for value in [*plan.hashes.values(), figures.plan_hash(plan)]:
        assert value in words


def test_columns_of_shares_are_called_so() -> None:
    plan = make_plan()
    for text in (html_page(plan), markdown_text(plan)):
        assert re.search(r"\bShare of the step", text)
        assert re.search(r"\bShare of the capacity", text)


def test_everything_drawn_has_a_colour() -> None:
    plan = make_plan()
    holders = dict.fromkeys((*HOLDERS, "fragmentation"), 2.0**28)
    parts = dict.fromkeys(plan.breakdown_s, plan.step_time_s / len(plan.breakdown_s))
    sources = dict.fromkeys(figures.SOURCES, 0.001)
    plan = dataclasses.replace(
        plan, memory_bytes=holders, breakdown_s=parts, compute_sources_s=sources
    )
    text = html_page(plan)
    drawn = set(re.findall(r'<rect [^>]*class="(\w-[\w]+)', text))
    assert len(drawn) > len(holders) + len(parts) + len(sources)
    assert {
        name for name in drawn if f".{name} {{" not in text and f".{name}," not in text
    } == set()


def test_the_page_loads_nothing() -> None:
    text = html_page(make_plan())
    page = Page(text)
    assert "http" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"} == set()
    assert not any(key in attrs for _, attrs in page.tags for key in ("src", "href", "srcset"))
    # what the charts refer to is on the page
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert sorted(ids) == ["dots", "hatch", "stripes"]
    assert set(re.findall(r"url\(#(\w+)\)", text)) <= set(ids)


def test_the_page_draws_every_layer_with_its_tip() -> None:
    plan = make_plan()
    text = html_page(plan)
    tips = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)
    for row in plan.layers.values():
        name = row.name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert sum(tip.startswith(f"{name} (") for tip in tips) == 2, "in the band and in the bars"
    labels = [a.get("aria-label") for tag, a in Page(text).tags if tag == "svg" and "role" in a]
    assert len(labels) == 6
    assert all(labels)


def test_bars_are_as_long_as_their_values() -> None:
    parts = [svg.Part(value=v, fill="x", tip=str(v)) for v in (1.0, 0.0, 3.0)]
    boxes = re.findall(
        r'x="([\d.]+)" y="0" width="([\d.]+)"', str(svg.stacked(0, 0, 400, 9, parts, 4.0))
    )
    assert [(float(x), float(w)) for x, w in boxes] == [(0.0, 99.0), (100.0, 299.0)]


def test_ticks_are_round_and_within_the_axis() -> None:
    assert svg.nice_ticks(1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.nice_ticks(0.0) == [0.0]
    for most in (3.7e-5, 0.9, 42.0, 1e9):
        ticks = svg.nice_ticks(most)
        assert ticks[-1] <= most
        assert 3 <= len(ticks) <= 11


def test_markdown_shows_all_figures_in_whole_tables() -> None:
    plan = make_plan()
    text = markdown_text(plan)
    words = " ".join(text.replace("\\|", "|").split())
    for figure in key_figures(plan):
        assert " ".join(figure.split()) in words
    assert plan.command in text
    assert figures.plan_hash(plan) in text
    columns = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        number = len(re.findall(r"(?<!\\)\|", line))
        assert columns in (0, number), line
        columns = number


def test_a_plan_from_python_gets_a_command_and_a_caveat() -> None:
    plan = make_plan(command="")
    assert "planner optimize handmade --gpus 64 --cluster lassen" in markdown_text(plan)
    for text in (markdown_text(plan), html_page(plan)):
        assert "made from Python" in text


def test_reports_of_the_same_plan_are_the_same(tmp_path: Path) -> None:
    plan = make_plan()
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert html_page(again) == html_page(plan)
    assert markdown_text(again) == markdown_text(plan)


def test_the_suffix_chooses_the_report(tmp_path: Path) -> None:
    for name, start in (("a.html", "<!DOCTYPE html>"), ("a.HTM", "<!DOCTYPE"), ("a.md", "# ")):
        write_report(make_plan(), tmp_path / name)
        assert (tmp_path / name).read_text().lstrip().startswith(start)
    with pytest.raises(InputError, match=r"must end in .html, .htm or .md"):
        report_kind(tmp_path / "a.pdf")


def test_layers_without_any_time_can_be_reported() -> None:
    rows = {"x": replace(layer("x", forward=0.0), gradient_s=0.0)}
    plan = make_plan(layers=rows, compute_sources_s={}, baselines=())
    assert Page(html_page(plan)).open == []
    assert "none of the usual strategies" in markdown_text(plan)
    assert "one device" not in terminal(plan)


def test_names_bring_no_markup_and_no_control_characters(tmp_path):
    odd = "<script>x</script>\x1b]0;x\x07\u202e[x](javascript:x)"
    plan = make_plan(model=odd, provenance={odd: odd}, command=odd)
    for name in ("plan.md", "plan.html"):
        write_report(plan, tmp_path / name)
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "<script" not in text
        assert not set("\x1b\x07\u202e") & set(text)
        assert "](javascript" not in text or name.endswith("html")


def test_the_terminal_shows_no_control_characters(capsys):
    show(lambda console: show_plan(make_plan(model="a\x1b]0;x\x07b\x9b2J\u202ec"), console))
    assert "a]0;xb2Jc on" in capsys.readouterr().out
    write("\x1b[1ma\x1b]0;x\x07\x1b[0m", styled=True)
    assert capsys.readouterr().out == "\x1b[1ma]0;x\x1b[0m\n"


@pytest.mark.parametrize("columns", ["1000000000", "9" * 30, "-5", "0"])
def test_absurd_widths_of_a_terminal_are_no_harm(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    show(lambda console: show_plan(make_plan(), console))
    assert "Step time" in capsys.readouterr().out


def test_lists_of_nothing_leave_no_blank_line():
    """A second one stood below a table of usual strategies of which nothing more is said."""
    console = Console(file=StringIO(), width=80)
    show_list(console, [])
    show_list(console, ["once"])
    assert console.file.getvalue().strip() == "- once"
    assert console.file.getvalue().count("\n") == 1


def test_a_plan_that_leaves_gpus_without_work_is_made_again_with_all_that_were_asked_for():
    plan = make_plan(command="")
    more = dataclasses.replace(plan, idle_gpus=2)
    assert f"--gpus {plan.gpus} " in figures.command(plan)[0]
    assert f"--gpus {plan.gpus + 2} " in figures.command(more)[0]
