"""Modules that stop gradients, tie weights, compute parts again, or make images are verified."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch")

import applied_works as works
import other_modules as others

import planner
from costmodels.errors import InputError
from costmodels.graph import build_graph
from costmodels.graph.kinds import data, make_layer
from planner.torch.source import traced_source
from planner.torch.verify.ranks import on_ranks
from planner.torch.verify.verify import verify_plan

IMAGES, FEATURES, TOKENS = "2,3,16,16", "2,16", "2,16:int64"


def slow(*row):
    return pytest.param(*row, marks=pytest.mark.slow)


@pytest.mark.ci_cases(3)
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


@pytest.mark.parametrize(
    ("name", "gpus", "strategy"),
    [
        ("Paired", 2, "filter"),
        ("HalfPaired", 4, "data"),
        slow("Paired", 2, "zero3"),
        slow("Paired", 2, "data"),
        slow("Paired", 4, "channel"),
        slow("HalfPaired", 4, "filter"),
        slow("HalfPaired", 2, "channel"),
    ],
)
def test_two_names_of_one_weight_are_one_weight(name, gpus, strategy):
    """They were refused: a rank would have ended with "KeyError: 'second.weight'"."""
    asked = {"inputs": FEATURES, "gpus": gpus, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(getattr(others, name), strategy=strategy, **asked)
    assert verify_plan(plan, ranks=gpus, module=f"other_modules:{name}").faults == []


def test_a_bias_beside_a_shared_weight_is_held_in_blocks(tmp_path):
    (tmp_path / "cut.toml").write_text(
        'format = "planner-strategy"\n'
        '[[layer]]\nname = "first"\npartition = { channel = 2 }\n'
        '[[layer]]\nname = "first_2"\npartition = { channel = 2 }\n'
    )
    asked = {"inputs": FEATURES, "gpus": 2, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(others.Paired, strategy=tmp_path / "cut.toml", **asked)
    (bias,) = plan.sharding.layers["first_2"].weights
    assert bias.placements == ("Shard(0)",)
    assert verify_plan(plan, ranks=2, module="other_modules:Paired").faults == []


def test_a_weight_with_two_names_is_saved_under_both():
    for block, both, same, names in on_ranks(works.second_names, 2):
        assert (block, both, same) == ((8, 16), True, True)
        assert names == list(dict(others.Paired().named_parameters()))


@pytest.mark.parametrize("strategy", ["channel", slow("filter")])
def test_blocks_of_a_shared_weight_get_what_they_lack_of_its_sum(strategy):
    """What the second place sends of the gradient was said to be charged as nothing."""
    asked = {"inputs": FEATURES, "gpus": 2, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(others.Twice, strategy=strategy, **asked)
    assert verify_plan(plan, ranks=2, module="other_modules:Twice").faults == []


@pytest.mark.slow
def test_attention_that_drops_its_weights_is_refused_with_what_to_set():
    """The advice was to split it otherwise, by samples, as this plan does already."""
    asked = {"inputs": "2,8,16", "gpus": 2, "cluster": "lassen", "global_batch_size": 8}
    plan = planner.evaluate(others.Encoded, strategy="data", **asked)
    with pytest.raises(
        InputError, match=r"under no split; set .* self_attn\.dropout of nn\."
    ) as said:
        verify_plan(plan, ranks=2, module="other_modules:Encoded")
    assert "split that layer otherwise" not in str(said.value)
    plan = planner.evaluate(others.KeptAttention, strategy="data", **asked)
    assert verify_plan(plan, ranks=2, module="other_modules:KeptAttention").faults == []
