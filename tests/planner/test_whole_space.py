"""The bound over every distribution: against searches that see them all."""

from __future__ import annotations

import numpy as np
import pytest
from test_optimize import SMALL, real

import planner
from costmodels.cluster import load_cluster
from planner.planning.bounds import certificate
from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.certificate import certify
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.whole_space import WholeSpace
from planner.planning.space.formulate import Formulation, formulate
from planner.planning.space.layer_space import NO_CAP
from planner.planning.space.profile import Profile
from search import SOLVERS, ProblemError
from search.problem.answers import no_assignment
from search.problem.deadline import Deadline

WHERE = {
    "one host": ("lassen", 4),
    "four hosts": ("lassen", 16),
    "two hosts of eight": ("dgx-a100", 16),
    "hosts of one": ("aws-p3.2xlarge", 8),
}


def formulated(network: str, where: str, cap: int) -> Formulation:
    name, gpus = WHERE[where]
    place = load_cluster(name)
    return formulate(SMALL[network](), place, real(gpus, place), cap=cap)


def every_split(network: str, where: str) -> Formulation:
    found = formulated(network, where, NO_CAP)
    assert found.num_candidates == found.num_sensible
    return found


def started(formulation: Formulation) -> tuple[AdditiveSearch, Profile]:
    search = AdditiveSearch(formulation=formulation, method="auto", seed=0, deadline=Deadline(None))
    return search, Profile.of(maximise_bound(search, None).weights)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("network", SMALL)
def test_no_distribution_is_below_the_bound(network, where, monkeypatch):
    everything = every_split(network, where)
    few = formulated(network, where, 4)
    assert few.num_candidates < everything.num_candidates
    # one profile, for which the true optimum over every distribution is known
    monkeypatch.setattr(certificate, "MAX_PROFILES", 1)
    search, profile = started(few)
    best = SOLVERS["elimination"](everything.problem(profile)).cost
    bound = certify(search, profile)
    assert (
        (1.0 - certificate.CLOSE) * min(best, search.incumbent.bound)
        <= bound
        <= best * (1.0 + 1e-9)
    )


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("network", SMALL)
def test_what_comes_back_makes_few_candidates_as_good_as_all(network, where):
    search, profile = started(formulated(network, where, 4))
    certify(search, profile)
    whole, _ = started(every_split(network, where))
    assert search.incumbent.cost <= whole.incumbent.cost * 1.05


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("network", SMALL)
@pytest.mark.parametrize("counted", [0.0, 0.7])
def test_a_problem_with_classes_costs_no_more_than_one_with_every_member(network, where, counted):
    everything, few = every_split(network, where), formulated(network, where, 4)
    best = SOLVERS["elimination"](everything.problem(counted)).cost
    least = LayerBounds.of(few, counted)
    assert least.bound <= best
    whole = WholeSpace.of(few, counted, least, 10.0 * best, Deadline(None))
    problem, _ = whole.problem(np.inf)
    assert SOLVERS["elimination"](problem).cost <= best * (1.0 + 1e-9)


def test_members_that_come_back_leave_their_classes():
    few = formulated("resnet18", "four hosts", 4)
    whole = WholeSpace.of(few, 0.0, LayerBounds.of(few, 0.0), np.inf, Deadline(None))
    name = next(iter(whole.left))
    one = whole.left[name]
    places = np.flatnonzero(one.class_of == 0)
    rest = one.without(places)
    assert len(rest.candidates) == len(one.candidates) - len(places)
    assert len(rest.first) == len(one.first) - 1
    both = np.concatenate([one.candidates.degrees[places], rest.candidates.degrees])
    assert len(np.unique(both.reshape(len(both), -1), axis=0)) == len(one.candidates)


def test_an_interrupt_of_a_wide_space_ends_the_search(monkeypatch):
    def too_wide(*_args, **_options):
        raise ProblemError("too wide")

    def interrupted(problem, **_options):
        return no_assignment(solver="auto", lower_bound=0.0, notes=[], stopped_by="interrupt")

    search, profile = started(formulated("inception", "four hosts", 4))
    monkeypatch.setattr(certificate, "plan", too_wide)
    monkeypatch.setattr(certificate, "SOLVERS", {"auto": interrupted})
    with pytest.raises(KeyboardInterrupt):
        certify(search, profile)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpus", "cluster", "batch", "cap"),
    [
        ("cosmoflow-128", 64, "abci", 4, 8),
        ("cosmoflow-128", 64, "abci", 4, 64),
        pytest.param("mesh-2k", 4096, "dgx-a100", 8, 64, marks=pytest.mark.slow),
    ],
)
def test_a_bound_is_never_above_a_plan_of_a_wider_search(model, gpus, cluster, batch, cap):
    options = {"gpus": gpus, "cluster": cluster, "global_batch_size": batch}
    narrow = planner.optimize(model, cap=cap, **options)
    wide = planner.optimize(model, cap=256, **options)
    assert narrow.search.lower_bound_s <= wide.step_time_s
    assert narrow.step_time_s <= wide.step_time_s * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpus", "cluster", "batch", "known"),
    [
        ("cosmoflow", 1024, "abci", 4, 0.0541),
        ("gpt2", 4096, "dgx-h100", 32, 0.0365),
    ],
)
def test_no_bound_is_above_a_plan_that_is_known(model, gpus, cluster, batch, known):
    plan = planner.optimize(model, gpus=gpus, cluster=cluster, global_batch_size=batch)
    assert plan.search.lower_bound_s <= known
