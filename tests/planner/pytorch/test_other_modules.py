"""Modules that stop gradients, tie weights, compute parts again, or make images are verified."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch")

import other_modules as others

import planner
from costmodels.errors import InputError
from costmodels.graph import build_graph
from costmodels.graph.kinds import data, make_layer
from planner.torch.source import traced_source
from planner.torch.verify.verify import verify_plan

IMAGES, FEATURES, TOKENS = "2,3,16,16", "2,16", "2,16:int64"


def slow(*row):
    return pytest.param(*row, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "strategy", "inputs"),
    [
        ("Stopped", "filter", IMAGES),
        ("Generator", "data", FEATURES),
        ("Slopes", "zero3", IMAGES),
        ("Gate", "data", FEATURES),
        ("Tied", "filter", TOKENS),
        ("Again", "megatron:tp=2", TOKENS),
        slow("Stopped", "data", IMAGES),
        slow("Stopped", "spatial", IMAGES),
        slow("Generator", "filter", FEATURES),
        slow("Slopes", "data", IMAGES),
        slow("Slopes", "filter", IMAGES),
        slow("Gate", "filter", FEATURES),
        slow("Tied", "zero3", TOKENS),
        slow("Tied", "channel", TOKENS),
        slow("Again", "data", TOKENS),
    ],
)
def test_plans_train_as_one_process_does(name, strategy, inputs):
    module = getattr(others, name)
    plan = planner.evaluate(
        module,
        inputs=inputs,
        gpus=2,
        strategy=strategy,
        cluster="lassen",
        global_batch_size=8,
    )
    assert verify_plan(plan, ranks=2, module=f"other_modules:{name}").faults == []


def test_parts_that_are_cast_automatically_are_refused():
    plan = planner.evaluate(others.Cast, inputs=FEATURES, gpus=2, global_batch_size=8)
    with pytest.raises(InputError, match=r"under torch\.autocast"):
        verify_plan(plan, ranks=2, module="other_modules:Cast")


def test_what_gets_no_gradient_is_charged_none():
    graph = build_graph(traced_source(others.Stopped, IMAGES).network, 2)
    fixed, stop = graph.layers["fixed"], graph.layers["detach_2"]
    assert (fixed.parameters, fixed.held_parameters) == (0, 3 * 16 * 9 + 16)
    assert stop.stops_gradient
    assert graph.input_gradients("detach_2") == (False,)
    assert graph.input_gradients("second") == (False,)
    assert graph.input_gradients("third") == (True,)


def test_features_that_become_an_image_are_normed_by_its_channels():
    rows = traced_source(others.Generator, FEATURES).network.layers
    kinds = [row.kind for row in rows]
    assert kinds.count("batch_norm") == 1
    # windows that overlap are known by their bytes alone; slopes are a trained vector
    assert kinds.count("opaque") == 1
    assert [row.options.get("weights") for row in rows if row.kind == "pointwise"] == [1]


def test_slopes_are_weights_whether_channels_share_them_or_not():
    network = traced_source(others.Slopes, IMAGES).network
    known = sum(one.numel() for one in others.Slopes().parameters())
    assert build_graph(network, 2).parameters == known
    options = [row.options for row in network.layers if row.kind == "pointwise"]
    assert options == [{"slopes": 1}, {"weights": 1}]
    with pytest.raises(InputError, match="either vectors"):
        make_layer(
            "pointwise", "p", [data("x", {"channel": 4}).output], {**options[0], "weights": 1}
        )


@pytest.mark.parametrize(("name", "biases"), [("Paired", 2), ("HalfPaired", 1)])
def test_layers_that_share_a_weight_have_their_products_whatever_their_biases(name, biases):
    """The second was opaque, without products and split by sample alone."""
    graph = build_graph(traced_source(getattr(others, name), FEATURES).network, 2)
    assert graph.parameters == 16 * 16 + 16 * biases
    assert graph.macs == 2 * 2 * 16 * 16
    assert [one.kind for one in graph.compute_layers].count("linear") == 2


def test_two_names_of_one_weight_are_refused_where_they_would_be_two_weights():
    """A rank ended with "KeyError: 'second.weight'"."""
    asked = {"inputs": FEATURES, "gpus": 2, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(others.Paired, strategy="data", **asked)
    with pytest.raises(InputError, match=r"first\.weight is second\.weight, too"):
        verify_plan(plan, ranks=2, module="other_modules:Paired")
    plan = planner.evaluate(others.Paired, strategy="zero3", **asked)
    assert verify_plan(plan, ranks=2, module="other_modules:Paired").faults == []


@pytest.mark.parametrize("strategy", ["channel", slow("filter")])
def test_blocks_of_a_shared_weight_get_what_they_lack_of_its_sum(strategy):
    """What the second place sends of the gradient was said to be charged as nothing."""
    asked = {"inputs": FEATURES, "gpus": 2, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(others.Twice, strategy=strategy, **asked)
    assert verify_plan(plan, ranks=2, module="other_modules:Twice").faults == []
