"""Generated problems: repeatable, in the contest's form, solvable, and short of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search.check import FORBIDDEN, cost_of, peak_of
from benchmarks.search.instances import FAMILIES, generate, mesh_network, parse
from search import Problem, Status, solve
from search.files.contest import read_problem


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_make_equal_problems(family: str) -> None:
    what = f"{family}:60:3"
    assert json.dumps(generate(what)) == json.dumps(generate(what))
    # another seed makes other numbers, not only another name
    assert generate(what)["problem"]["nodes"] != generate(f"{family}:60:4")["problem"]["nodes"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_splitting_the_first_dim_everywhere_is_allowed_and_fits(family: str, seed: int) -> None:
    what = f"{family}:300:{seed}"
    net, raw = mesh_network(what), generate(what)["problem"]
    safe = [one.layouts.index((one.out[0],) * len(net.mesh)) for one in net.operations]
    assert cost_of(raw, safe) < FORBIDDEN
    usages = raw["nodes"]["usages"]
    assert all(used[choice] == min(used) for used, choice in zip(usages, safe, strict=True))
    assert raw["usage_limit"] == peak_of(raw, safe) * 11 // 10
    costs = raw["edges"]["costs"]
    assert sum(max(matrix) == FORBIDDEN for matrix in costs) > 0.1 * len(costs)
    assert all(0 <= value <= FORBIDDEN for matrix in costs for value in matrix)
    assert any(FORBIDDEN in values for values in raw["nodes"]["costs"])
    assert len(raw["nodes"]["costs"]) >= 150


@pytest.mark.parametrize("family", FAMILIES)
def test_the_limit_rules_out_what_would_be_cheapest(tmp_path: Path, family: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(generate(f"{family}:60:1")))
    problem = read_problem(path).problem
    free = Problem(
        costs=problem.costs,
        edges=problem.edges,
        usages=problem.usages,
        intervals=problem.intervals,
    )
    cheapest = solve(free, time_limit=60.0)
    assert cheapest.status is Status.OPTIMAL
    assert problem.usage_limit is not None
    assert cheapest.peak_usage > problem.usage_limit


def test_leaves_are_what_leafy_problems_are_made_of() -> None:
    raw = generate("leafy:2000:0")["problem"]
    degrees = [0] * len(raw["nodes"]["costs"])
    for pair in raw["edges"]["nodes"]:
        for node in pair:
            degrees[node] += 1
    assert 1900 < len(degrees) < 2100
    assert sum(degree == 1 for degree in degrees) > 0.6 * len(degrees)


def test_what_to_generate() -> None:
    assert parse("unet:100:7") == ("unet", 100, 7)
    for what in ("unet", "unet:100", "unet:0:1", "unet:1:-1", "vgg:10:1", "unet:9999999:1", "::"):
        with pytest.raises(ValueError, match="must be FAMILY:SIZE:SEED"):
            parse(what)
