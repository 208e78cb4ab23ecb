"""What Python passes is refused in a sentence or taken for what it is; nothing fails inside."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import planner
from planner import Degrees, InputError, Loading, Request
from planner.request.inputs import COMMANDS
from planner.request.request import make_request

QUESTION = {"gpus": 4, "cluster": "lassen", "global_batch_size": 32}
# By kind of an input what it is not, whatever its rule.
STRANGE: dict[str, tuple[object, ...]] = {
    "whole": ("4", 4.0, True, [4], 2**60, -(2**60), 1j, b"4", float("nan")),
    "count": ("4", 4.0, False, 0, -1, 2**60, (1,)),
    "number": ("0.5", True, float("nan"), [0.5], 10**400, b"1", 1j),
    "switch": ("no", "", 0, 1, [], 0.0, "False"),
    "text": (5, True, ["auto"], b"auto", 1.5),
    "texts": ("x.csv", 5, [5], [None], {"a": 1}, b"x.csv", True),
    "counts": (4, True, [1.5], ["4"], [True], {4: 8}, 2.5, b"4"),
    "mixed": (1.5, b"alexnet", {}, 1j, [1.5]),
    "shapes": (5, "8,3", [None], {"a": 1}, b"8", 1j),
    "object": (5, True, [], b"alexnet", 1.5, {}),
}
QUANTITIES = (True, float("nan"), [1], b"1 GiB", 1j, {})
CASES = [
    pytest.param(command, one, value, id=f"{command}-{one.called}-{value!r}")
    for command, inputs in COMMANDS.items()
    for one in inputs
    for value in (QUANTITIES if one.unit is not None else STRANGE[one.kind])
]


@pytest.mark.parametrize(("command", "one", "value"), CASES)
def test_another_kind_of_value_is_refused_in_a_sentence(command, one, value):
    subject = "source" if command == "simulate" else "model"
    given = {subject: "alexnet", one.called: value}
    with pytest.raises(InputError) as raised:
        make_request(command, given)
    message = str(raised.value)
    assert any(name and name in message for name in (one.called, one.option, one.metavar))
    assert " must " in message
    assert "; " in message


def test_numbers_of_numpy_are_numbers():
    plan = planner.evaluate(
        "alexnet",
        gpus=np.int64(4),
        cluster="lassen",
        global_batch_size=np.int32(32),
        memory=np.float32(2**33),
        degree=np.int8(2),
        strategy="data+filter",
    )
    given = {"degree": 2, "memory": 2.0**33, "strategy": "data+filter"}
    assert plan == planner.evaluate("alexnet", **QUESTION, **given)
    sizes = [answer.gpus for answer in planner.scale("alexnet", gpus=np.array([1, 2]), cap=4)]
    assert sizes == [1, 2]
    assert Request(source="alexnet", time_limit=5) == Request(source="alexnet", time_limit=5.0)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Degrees(tp=2.0),
        lambda: Degrees(pp=0),
        lambda: Degrees(recompute="no"),
        lambda: Degrees(schedule=5),
        lambda: Loading(loader="native", rate=1e-9),
        lambda: Loading(loader="native", rate=0),
        lambda: Loading(loader="native", rate=float("nan")),
        lambda: Loading(loader="native", cores=0),
        lambda: Loading(loader="native", cores=1.5),
        lambda: Loading(loader=5),
    ],
)
def test_parts_of_a_request_are_checked_where_they_are_made(refused):
    with pytest.raises(InputError):
        refused()


@pytest.mark.parametrize("given", [[], (), "", "5-7", "4,,8", "8-4", "0-4", "x", "4-", "4-9999"])
def test_numbers_of_gpus_that_are_none_are_refused_at_once(given):
    with pytest.raises(InputError, match="number"):
        planner.scale("alexnet", gpus=given, cluster="dgx-a100")


@pytest.mark.slow
def test_a_range_is_what_the_machine_has_of_it():
    answers = planner.scale("alexnet", gpus="2-9,32", cluster="dgx-a100", cap=4, num_best=1)
    assert [answer.gpus for answer in itertools.islice(answers, 4)] == [2, 4, 8, 32]
    with pytest.raises(InputError, match="divide or fill the hosts"):
        planner.scale("alexnet", gpus="4,7", cluster="dgx-a100")


def test_paths_may_be_path_objects(tmp_path):
    path = tmp_path / "plan.json"
    planner.evaluate("alexnet", **QUESTION).save(path)
    assert planner.simulate(path).fits
    assert planner.evaluate("alexnet", strategy=path, **QUESTION).fits
    with pytest.raises(InputError, match="must be readable"):
        planner.optimize(Path("nowhere.toml"), gpus=4)
    with pytest.raises(InputError, match="cluster"):
        planner.optimize("alexnet", gpus=4, cluster=tmp_path / "nowhere.toml")


@pytest.mark.slow
def test_results_are_shown_in_a_line_by_python() -> None:
    plan = planner.optimize("resnet18", gpus=4)
    step = planner.simulate("resnet18", gpus=4, strategy="data")
    for shown, seconds in ((repr(plan), plan.step_time_s), (repr(step), step.step_time)):
        assert len(shown) < 200
        assert "'resnet18', gpus=4" in shown
        assert f"step_time_s={seconds:.6g}" in shown
