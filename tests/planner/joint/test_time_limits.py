"""What is left out once the time is up, and what is said then."""

from __future__ import annotations

import json
import math
from functools import partial

import msgspec
import pytest

import planner
from costmodels.cluster import load_cluster
from planner.errors import InfeasibleError
from planner.joint import requests, splits_alone
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.fewer_gpus import FewerGpus
from planner.joint.offload import offloaded
from planner.joint.offloading import heavy_rows
from planner.joint.own_splits import OwnSplits
from planner.joint.pace import Pace
from planner.joint.ranking import Ranking
from planner.joint.refined import with_refinements
from planner.joint.runtimes import searched_runtime
from planner.joint.search import ESTIMATE_SHARE, JointSearch
from planner.joint.simulations import Simulations
from planner.joint.ways_inside import insides
from planner.joint.weights import LeastWeights
from planner.joint.wishes import NO_WISHES
from planner.planning.infeasible import stopped_error
from planner.planning.options import SearchOptions
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

QUESTION = {"gpus": 4, "cluster": "dgx-a100", "global_batch_size": 8, "optimizer": "adam"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    fields = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(fields))
    return str(path)


def test_offload_is_looked_for_no_longer_than_there_is_time(config):
    arguments = {"model": config, "memory": "2 GiB", **QUESTION}
    setting = resolve(make_request("optimize", arguments))
    weights = LeastWeights(setting)
    heavy = [one for one in choices(setting, list(insides(setting))) if not weights.fit(one)]
    floors = PipelineBounds(setting, Estimates(setting, searched_runtime(setting)).plain.reduced)
    rows, others = heavy_rows(setting, heavy, floors, Deadline(None))
    assert len(rows) > 20
    assert others == math.inf
    few, unseen = heavy_rows(setting, heavy, floors, Deadline(0.0))
    # those of one choice, so that something is known, and nothing of all others
    assert 0 < len(few) <= max(len(offloaded(one)) for one in heavy)
    assert unseen == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("most", [3, 6])
def test_each_simulation_of_a_proof_asks_whether_there_is_time(config, monkeypatch, most):
    free = planner.optimize(config, **QUESTION)
    reserved = load_cluster(QUESTION["cluster"]).device.reserved_memory
    memory = reserved + 0.8 * (free.peak_memory - reserved)
    tried = []
    simulate = Simulations.attempt

    def counted(self, choice, bound):
        tried.append(choice)
        return simulate(self, choice, bound)

    monkeypatch.setattr(Simulations, "attempt", counted)
    forbid = "pipeline,tensor,context,offload"
    planner.optimize(config, memory=memory, forbid=forbid, **QUESTION)
    assert len(tried) > most  # there is more to simulate
    tried.clear()
    monkeypatch.setattr(Pace, "allows", lambda *_: len(tried) < most)
    planner.optimize(config, memory=memory, forbid=forbid, **QUESTION)
    assert len(tried) <= most


class OnceLate(Deadline):
    """A deadline in an hour, of which estimates are left nothing when they first ask."""

    __slots__ = ("parts",)

    def __init__(self):
        super().__init__(3600.0)
        self.parts = []

    def earlier(self, seconds):
        return self

    def part(self, share):
        self.parts.append(share)
        late = self.parts.count(ESTIMATE_SHARE) == 1 and share == ESTIMATE_SHARE
        return Deadline(0.0) if late else super().part(share)


def test_estimates_that_were_cut_short_go_on_where_time_is_left(config):
    setting = resolve(make_request("optimize", {"model": config, **QUESTION}))
    question = {"setting": setting, "runtime": searched_runtime(setting)}
    search = partial(JointSearch, **question, options=SearchOptions())
    whole = search(deadline=Deadline(None)).run()
    found = search(deadline=(deadline := OnceLate())).run()
    assert deadline.parts.count(ESTIMATE_SHARE) > 1
    assert found.best.seconds == whole.best.seconds
    assert len(found.estimates) == len(whole.estimates)
    assert not found.stopped_by


def test_choices_that_there_is_no_time_to_list_leave_no_bound(config):
    """All were listed, however many there are: half a second too late for deepseek-v3 on 2,048."""
    setting = resolve(make_request("optimize", {"model": config, **QUESTION}))
    question = {"setting": setting, "runtime": searched_runtime(setting)}
    search = partial(JointSearch, **question, options=SearchOptions())
    whole = search(deadline=Deadline(None)).run()
    found = search(deadline=Deadline(0.0)).run()
    assert 0 < found.num_choices < whole.num_choices / 10
    assert found.bound == 0.0 < whole.bound
    assert found.stopped_by == "time limit"
    assert found.best is not None


def test_choices_are_refined_no_longer_than_leaves_time_for_a_plan(config):
    """What Llama 3 70B on 256 computes again, and where it is cut, took 2.3 s of 3."""
    setting = resolve(make_request("optimize", {"model": config, "memory": "2 GiB", **QUESTION}))
    estimates = Estimates(setting, searched_runtime(setting))
    capacity = setting.cluster.device.memory
    few = [one for one in choices(setting, list(insides(setting))) if one.micro_batches > 1]
    ranked = sorted(map(estimates.of, few), key=lambda one: one.seconds)

    def refined(deadline):
        ranking = Ranking(estimates=estimates, deadline=deadline, capacity=capacity)
        found = with_refinements(ranked, ranking, partly=True, hybrid=True)
        return len(found) - len(ranked), ranking.cut_short

    more, cut_short = refined(Deadline(None))
    assert more > 10
    assert not cut_short
    assert refined(Deadline(0.0)) == (0, True)


@pytest.mark.slow
def test_choices_are_listed_no_longer_than_leaves_time_for_a_plan(config, monkeypatch):
    """The list took all time there was, after which a plan of deepseek-v3 took 1.3 s."""
    setting = resolve(make_request("optimize", {"model": config, **QUESTION}))
    question = {"setting": setting, "runtime": searched_runtime(setting)}
    search = partial(JointSearch, **question, options=SearchOptions())
    whole = search(deadline=Deadline(3600.0)).run()
    assert Pace(deadline=Deadline(10.0), layers=10**9).before_one.remaining < 6.0
    assert Pace(deadline=Deadline(None), layers=1).before_one.remaining == math.inf
    monkeypatch.setattr(Pace, "before_one", property(lambda _: Deadline(0.0)))
    found = search(deadline=Deadline(3600.0)).run()
    assert 0 < found.num_choices < whole.num_choices / 10
    assert found.best is not None
    assert found.stopped_by == "time limit"


def test_fewer_gpus_are_not_asked_for_where_there_is_no_time_for_their_plan(config, monkeypatch):
    setting = resolve(make_request("optimize", {"model": config, **QUESTION}))
    plan = planner.optimize(config, **QUESTION)
    monkeypatch.setattr(FewerGpus, "_promising", lambda *_: pytest.fail("there is no time"))
    fewer = FewerGpus(setting, NO_WISHES, None, None, Deadline(1e-3))
    assert fewer.faster_plan(plan, lambda *_: pytest.fail("nor for it")).search.stopped_by


def test_data_parallelism_is_taken_to_fit_where_it_takes_long_to_tell(monkeypatch):
    setting = resolve(make_request("optimize", {"model": "resnet18", **QUESTION}))
    monkeypatch.setattr(splits_alone, "tried", lambda *_: (None, "it does not fit"))
    assert not splits_alone.fits_as_usual(setting, Deadline(None))
    assert splits_alone.fits_as_usual(setting, Deadline(1e-3))


def test_what_was_cut_short_says_so(config):
    with pytest.raises(InfeasibleError) as caught:
        planner.optimize(config, memory="2.2 GiB", time_limit=0.001, forbid="offload", **QUESTION)
    assert caught.value.stopped_by == "time limit"
    assert str(caught.value).startswith("stopped before a plan was found, by the time limit")
    assert "raise the time limit" in str(caught.value)


def test_a_larger_size_without_time_has_the_plan_of_a_smaller_one(monkeypatch):
    """Of strong scaling: the batch is the same, and the plan leaves the others without work."""
    answered = requests.optimize_request

    def late(request, *arguments, **options):
        if request.gpus == 2:
            return answered(request, *arguments, **options)
        raise stopped_error("time limit")

    monkeypatch.setattr(requests, "optimize_request", late)
    question = {**QUESTION, "gpus": (1, 2, 4), "time_limit": 100.0}
    none, smaller, larger = planner.scale("alexnet", strong=True, **question)
    assert isinstance(none, InfeasibleError)
    assert (smaller.gpus, smaller.idle_gpus) == (2, 0)
    assert (larger.gpus, larger.idle_gpus) == (2, 2)
    assert larger.step_time_s == smaller.step_time_s
    assert larger.search.stopped_by == "time limit"
    assert larger.search.lower_bound_s == 0.0
    # weak scaling has another batch
    _, _, weak = planner.scale("alexnet", **question)
    assert isinstance(weak, InfeasibleError)


@pytest.mark.parametrize(("turn", "is_late"), [(1e-12, False), (1.0, True)])
def test_no_other_way_is_looked_for_where_its_plan_would_be_too_late(monkeypatch, turn, is_late):
    """A chain of 10,000 layers with a limit of 1 s took 14 s: nothing was costed, and then all."""

    def costs_nothing(*_):
        raise stopped_error("time limit")

    monkeypatch.setattr("planner.joint.pace.turn_of_a_loop", lambda: turn)
    monkeypatch.setattr("planner.joint.answer.plan_for", costs_nothing)
    question = {"gpus": 2, "cluster": "lassen", "global_batch_size": 8, "time_limit": 5.0}
    if is_late:
        with pytest.raises(InfeasibleError, match="stopped before a plan was found"):
            planner.optimize("alexnet", **question)
    else:
        assert planner.optimize("alexnet", **question).search.stopped_by


def test_a_time_limit_leaves_some_for_weights_that_are_cut_under_another_runtime(
    config, monkeypatch
):
    left = {}
    run = JointSearch.run

    def timed(self):
        left[self.runtime.name] = self.deadline.remaining
        return run(self)

    monkeypatch.setattr(JointSearch, "run", timed)
    planner.optimize(config, **QUESTION, time_limit=300)
    assert left["ddp"] <= 0.6 * 300
    # what the usual runtimes leave of their part is there as well
    assert left["zero3"] > 0.6 * 300


@pytest.mark.slow
def test_layers_split_in_their_own_ways_have_time_whatever_was_cut_short_before(monkeypatch):
    left = {}
    joint, own = JointSearch.run, OwnSplits.run

    def cut_short(self):
        left[self.runtime.name] = self.deadline.remaining
        return msgspec.structs.replace(joint(self), stopped_by="time limit")

    def timed(self):
        left["own splits"] = self.deadline.remaining
        own(self)

    monkeypatch.setattr(JointSearch, "run", cut_short)
    monkeypatch.setattr(OwnSplits, "run", timed)
    question = {"gpus": 8, "global_batch_size": 64, "memory": "1.15 GiB", "time_limit": 300}
    plan = planner.optimize("alexnet", **question)
    assert plan.search.stopped_by == "time limit"
    # the other runtime may take half of what is left, and they have what it leaves of that as well
    assert left["zero3"] <= 150.0
    assert left["own splits"] > 150.0
