"""A plan as one self-contained page for review: no scripts, no fonts, nothing from a network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

import planner
from planner.plan import Plan
from planner.report import charts, figures, rivals, sentences, svg
from planner.report.runs import MAX_RUNS, folded_blocks, runs_of_blocks, runs_of_plan, shares
from planner.report.verdict import verdict


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("planner.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=figures.seconds,
        size=figures.size,
        percent=figures.percent,
        gap=sentences.gap_figure,
        count=figures.count,
        speed_up=figures.speed_up,
        bare=_without_scheme,
    )
    return environment


def _without_scheme(text: str) -> str:
    """Addresses as text: a page that names no scheme can be checked to load nothing."""
    return text.replace("https://", "").replace("http://", "")


def report_text(plan: Plan) -> str:
    """The page of a plan."""
    runs = runs_of_plan(plan)
    drawn, counts = folded_blocks(runs)
    listed = runs_of_blocks(runs) if len(runs) > MAX_RUNS else runs
    command, recorded = figures.command(plan)
    facts: dict[str, Any] = {
        "plan": plan,
        "verdict": verdict(plan),
        "runs": listed,
        "num_runs": len(runs),
        "num_repeated": len(plan.layers) - len(counts),
        "groups": figures.group_rows(plan),
        "splits": [
            (key, svg.fill_of(charts.split_index(key)), *row) for key, row in shares(plan).items()
        ],
        "layers": [(layer, run) for run in runs for layer in run.layers],
        "step_rows": figures.step_rows(plan),
        "memory_rows": figures.memory_rows(plan),
        "source_rows": figures.source_rows(plan),
        "provenance_rows": figures.provenance_rows(plan),
        "rivals": rivals.usual_rivals(plan),
        "machine": figures.machine_words(plan),
        "shape": figures.shape(plan),
        "word": figures.sample_word(plan.input_shape),
        "options": figures.options(plan),
        "memory_sentence": sentences.memory_sentence(plan),
        "training_sentence": sentences.training_sentence(plan),
        "shares_sentence": sentences.shares_sentence(plan),
        "searched": sentences.searched(plan),
        "quality_sentence": sentences.quality_sentence(plan),
        "space_sentence": sentences.space_sentence(plan),
        "idle_sentence": sentences.idle_sentence(plan),
        "simulation_sentence": sentences.simulation_sentence(plan),
        "rival_sentence": rivals.rival_sentence(plan),
        "best_rival": rivals.best_rival(plan),
        "layer_causes": figures.LAYER_CAUSES,
        "hidden_rows": figures.hidden_rows(plan),
        "command": command,
        "unrecorded": "" if recorded else figures.UNRECORDED,
        "plan_hash": figures.plan_hash(plan),
        "version": planner.__version__,
        "definitions": svg.definitions(),
        "step_chart": charts.step_chart(plan),
        "memory_chart": charts.memory_chart(plan),
        "band_chart": charts.band_chart(drawn, counts),
        "layers_chart": charts.layers_chart(drawn, counts),
        "rivals_chart": charts.rivals_chart(plan),
        "sources_chart": charts.sources_chart(plan),
    }
    return page("report.html", facts)


def page(template: str, facts: Mapping[str, object]) -> str:
    """A page of figures.

    Parameters
    ----------
    template
        Its name among the templates.
    facts
        What it shows.
    """
    return _environment().get_template(template).render(facts)
