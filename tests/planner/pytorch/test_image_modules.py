"""Modules of images and of several inputs train under plans, and move what is charged."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch", "transformers")

import image_modules as images

import planner
from costmodels.graph import build_graph
from planner.torch.source import traced_source
from planner.torch.verify.verify import verify_plan


def verified(name, strategy, inputs, module_inputs=None):
    plan = planner.evaluate(
        getattr(images, name),
        inputs=inputs,
        gpus=2 if "dp=2" not in strategy else 4,
        strategy=strategy,
        cluster="lassen",
        global_batch_size=8,
    )
    where = f"image_modules:{name}"
    return verify_plan(plan, ranks=plan.gpus, module=where, inputs=module_inputs)


# What is read through a copy, such as one token of all, is moved between the two layers where the
# plan says so; where nothing but samples is cut, whatever a copy makes of the rest is no matter.
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("ClassToken", "megatron:tp=2,dp=2"),
        ("Mixer", "data"),
        ("Normed", "data"),
        ("Normed", "filter"),
        ("Padded", "spatial"),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("ClassToken", "zero3"),
                ("ClassToken", "filter"),
                ("ClassToken", "channel"),
                ("Mixer", "filter"),
                ("Mixer", "channel"),
                ("Normed", "channel"),
            )
        ),
    ],
)
def test_plans_of_images_train_as_one_process_does(name, strategy):
    assert verified(name, strategy, "2,3,32,32").faults == []


@pytest.mark.ci_cases(5)
@pytest.mark.parametrize(
    ("name", "strategy", "inputs"),
    [
        ("Einsums", "data", "2,16,32"),
        ("Written", "data", "2,32"),
        ("Written", "filter", "2,32"),
        ("Written", "channel", "2,32"),
        ("Dropped", "data", "2,32"),
        # the backward pass of a norm gathers its weight again, and not its bias
        ("Normalised", "zero3", "2,3,8,8"),
        # statistics of features and of samples that ranks have blocks of
        ("Features", "filter", "2,16"),
        ("Features", "data", "2,16"),
        pytest.param("Features", "channel", "2,16", marks=pytest.mark.slow),
        ("Features", "megatron:tp=2", "2,16"),
        pytest.param("Features", "megatron:tp=2,dp=2", "2,16", marks=pytest.mark.slow),
        pytest.param("Features", "megatron:pp=2,micro_batches=2", "2,16", marks=pytest.mark.slow),
    ],
)
def test_products_in_other_words_train_as_one_process_does(name, strategy, inputs):
    assert verified(name, strategy, inputs).faults == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("resnet18", "megatron:pp=2,micro_batches=2"),
        pytest.param("alexnet", "zero3", marks=pytest.mark.slow),
        # whose gates have the size of what they scale where images are smallest
        pytest.param("efficientnet_b0", "zero3", marks=pytest.mark.slow),
        ("resnet18", "zero2"),
    ],
)
def test_networks_of_images_train_in_shards_and_in_stages(name, strategy):
    plan = planner.evaluate(name, gpus=2, strategy=strategy, cluster="lassen", global_batch_size=8)
    found = verify_plan(plan, ranks=2)
    assert found.faults == []
    assert found.differences or strategy != "zero3"
    assert all(one.place in plan.layers for one in found.differences)


def test_gradients_of_parts_of_a_joined_tensor_are_sent():
    strategy = "megatron:pp=2,micro_batches=2,schedule=zero-bubble"
    assert verified("Joined", strategy, "2,3,16,16").faults == []


@pytest.mark.parametrize("strategy", ["spatial", "data", "filter"])
def test_norms_that_are_used_twice_train_as_one_process_does(strategy):
    assert verified("Twins", strategy, "2,4,16,16").faults == []


def test_equations_are_the_products_that_they_are():
    graph = build_graph(traced_source(images.Einsums, "2,16,32").network, 2)
    kinds = [one.kind for one in graph.compute_layers]
    assert kinds == [*["linear"] * 3, "attention", "linear", "add", "linear", "loss"]
    tokens, attention = 2 * 16, 2 * 2 * 16 * 16 * 32
    assert graph.macs == tokens * 32 * (4 * 32 + 8) + attention


def test_zeros_around_what_a_convolution_reads_are_its_padding():
    graph = build_graph(traced_source(images.Padded, "2,3,32,32").network, 2)
    # zeros at one end only are none of it
    odd = [row for row in graph.compute_layers if row.kind == "opaque"]
    assert [row.output.extent("height") for row in odd] == [17]
    first, second = graph.layers["first"], graph.layers["second"]
    assert [one.padding for one in first.windows.values()] == [1, 1]
    assert [one.padding for one in second.windows.values()] == [2, 2]
    assert {"height", "width"} <= second.splittable


TOWERS = ["2,16", "2,24"]
IMAGES = ["2,3,16,16", "2,3,16,16"]
TOKENS = ["input_ids=2,16", "decoder_input_ids=2,8"]


@pytest.mark.parametrize(
    ("name", "strategy", "inputs"),
    [
        ("Towers", "filter", TOWERS),
        ("Pair", "filter", IMAGES),
        ("Towers", "data", ["items=2,24", "users=2,16"]),
        pytest.param("t5", "megatron:tp=2", TOKENS, marks=pytest.mark.slow),
    ],
)
def test_plans_of_several_inputs_train_as_one_process_does(name, strategy, inputs):
    assert verified(name, strategy, inputs, inputs).faults == []


def test_a_norm_that_casts_a_part_of_what_it_reads_is_a_norm():
    module = images.t5().double()
    rows = traced_source(module, TOKENS).network.layers
    assert [row.kind for row in rows].count("rms_norm") == 7
    assert "opaque" not in {row.kind for row in rows}


def test_nothing_is_sent_back_into_what_nothing_trained_has_made():
    graph = build_graph(traced_source(images.Towers, TOWERS).network, 8)
    first = [one for one in graph.compute_layers if one.kind == "linear"][:4:2]
    assert [graph.input_gradients(one.name) for one in first] == [(False,), (False,)]
