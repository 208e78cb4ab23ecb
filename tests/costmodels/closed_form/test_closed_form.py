"""ParaDL's and Paleo's closed forms against the formulas of their papers, worked out by hand.

Two convolutions of one spatial dim and a fully connected layer, eight samples. Per sample and in
items: x1 = 4 x 16, y1 = x2 = 8 x 16, y2 = 8 x 16 = x3, y3 = 8.
"""

from __future__ import annotations

import math

import pytest
from machines import ALPHA, BANDWIDTH, FLOP_RATE, UPDATE_RATE, cluster, graph, machine
from msgspec.structs import replace

from costmodels.closed_form import CLOSED_FORMS, closed_form_step, paleo, paradl
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph

BATCH, DELTA, BETA = 8, 4, 1 / BANDWIDTH
W1, W2, W3 = 3 * 4 * 8, 3 * 8 * 8, 8 * 16 * 8
W = W1 + W2 + W3
# multiply-adds of a sample, forward; conv1 has no backward-data pass
M1, M2, M3 = W1 * 16, W2 * 16, W3
FW = 2 * (M1 + M2 + M3) / FLOP_RATE
BW = 2 * (M1 + 2 * M2 + 2 * M3) / FLOP_RATE
WU = W / UPDATE_RATE
Y1, Y2, Y3 = 8 * 16, 8 * 16, 8


def network() -> Graph:
    conv = {"filters": 8, "kernel": 3, "padding": 1}
    rows = [
        ("conv1", "conv", conv),
        ("relu1", "activation", {}),
        ("conv2", "conv", conv),
        ("fc", "linear", {"filters": 8, "bias": False}),
    ]
    return graph({"channel": 4, "width": 16}, rows, BATCH)


def plan(shape: tuple[int, ...], **splits: dict[str, tuple[int, ...]]) -> dict[str, Distribution]:
    """Distributions from the degrees at each level; the rest is replicated."""
    return {
        layer.name: Distribution(degrees=splits.get(layer.name, {}), shape=shape)
        for layer in network().compute_layers
    }


def everywhere(shape: tuple[int, ...], **degrees: tuple[int, ...]) -> dict[str, Distribution]:
    return plan(shape, **{layer.name: dict(degrees) for layer in network().compute_layers})


def ring(p: int, size: float) -> float:
    return 2 * (p - 1) * (ALPHA + size / p * BETA)


def test_serial():
    result = closed_form_step("paradl", network(), plan((1,)), machine(cluster(1)))
    assert result.strategy == "serial"
    assert result.forward == pytest.approx(BATCH * FW)
    assert result.backward == pytest.approx(BATCH * BW)
    assert result.update == pytest.approx(WU)
    assert result.total == pytest.approx(BATCH * (FW + BW) + WU)


@pytest.mark.parametrize("p", [2, 8])
def test_data(p):
    result = closed_form_step(
        "paradl", network(), everywhere((p,), sample=(p,)), machine(cluster(p))
    )
    assert result.strategy == "data"
    assert result.forward + result.backward == pytest.approx(BATCH / p * (FW + BW))
    assert result.update == pytest.approx(WU)
    assert result.communication == {
        "gradient": pytest.approx(ring(p, W * DELTA)),
        "halo": 0.0,
        "reduction": 0.0,
        "stage": 0.0,
    }
    assert result.total == pytest.approx(BATCH / p * (FW + BW) + WU + ring(p, W * DELTA))


def spatial(ways: tuple[int, ...], **more: tuple[int, ...]) -> dict:
    split = {"width": ways, **more}
    return {"conv1": split, "relu1": split, "conv2": split, "fc": dict(more)}


@pytest.mark.parametrize("p", [2, 4])
def test_spatial(p):
    result = closed_form_step("paradl", network(), plan((p,), **spatial((p,))), machine(cluster(p)))
    assert result.strategy == "spatial"
    # the fully connected layer is not split
    per_sample = (2 * M1 + 3 * M2) / p + 3 * M3
    assert result.forward + result.backward == pytest.approx(BATCH * 2 * per_sample / FLOP_RATE)
    assert result.update == pytest.approx(WU)
    assert result.communication["gradient"] == pytest.approx(ring(p, W * DELTA))
    # one position of x1, of x2 and of dL/dy2, each to both sides
    items = BATCH * (4 + 8 + 8)
    assert result.communication["halo"] == pytest.approx(2 * (3 * ALPHA + items * DELTA * BETA))


def test_halo_of_two_split_dims():
    conv = ("conv", "conv", {"filters": 6, "kernel": [3, 5], "padding": [1, 2], "bias": False})
    g = graph({"channel": 2, "height": 8, "width": 12}, [conv], 4)
    split = {"height": (2,), "width": (3,)}
    where = cluster(6)
    plans = {"conv": Distribution(degrees=split, shape=(6,))}
    result = closed_form_step("paradl", g, plans, machine(where))
    # one row of 12/3 and two columns of 8/2 positions; the data wants no gradient
    items = 4 * 2 * (1 * 4 + 2 * 4)
    assert result.communication["halo"] == pytest.approx(2 * (ALPHA + items * DELTA * BETA))


def weighted(**degrees: tuple[int, ...]) -> dict:
    return {"conv1": degrees, "conv2": degrees, "fc": degrees}


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("kind", ["filter", "channel"])
def test_filter_and_channel(kind, p):
    split = weighted(**{kind: (p,)})
    result = closed_form_step("paradl", network(), plan((p,), **split), machine(cluster(p)))
    assert result.strategy == kind
    assert result.forward + result.backward == pytest.approx(BATCH / p * (FW + BW))
    assert result.update == pytest.approx(WU / p)
    gathered = 3 * (p - 1) * sum(ALPHA + BATCH * y / p * DELTA * BETA for y in (Y1, Y2))
    assert result.communication["reduction"] == pytest.approx(gathered)
    assert result.communication["gradient"] == 0.0


def test_channel_parallelism_may_start_at_the_second_layer():
    split = weighted(channel=(4,))
    split["conv1"] = {}
    result = closed_form_step("paradl", network(), plan((4,), **split), machine(cluster(4)))
    once = BATCH * 2 * (2 * M1 + (3 * M2 + 3 * M3) / 4) / FLOP_RATE
    assert result.forward + result.backward == pytest.approx(once)
    # all-reduce of y2 forward; all-gathers of dL/dx of conv2 and fc backward
    there = ring(4, BATCH * Y2 * DELTA)
    back = 3 * sum(ALPHA + BATCH * y / 4 * DELTA * BETA for y in (Y1, Y2))
    assert result.communication["reduction"] == pytest.approx(there + back)


def test_data_and_filter():
    p1, p2 = 2, 4
    split = weighted(sample=(1, p1), filter=(p2, 1))
    split["relu1"] = {"sample": (1, p1)}
    result = closed_form_step(
        "paradl", network(), plan((p2, p1), **split), machine(cluster(p2, p1))
    )
    assert result.strategy == "data+filter"
    assert result.forward + result.backward == pytest.approx(BATCH / (p1 * p2) * (FW + BW))
    assert result.update == pytest.approx(WU / p2)
    # equation 22 with subscripts: p = p1 p2
    gathered = 3 * (p2 - 1) * sum(ALPHA + BATCH * y / (p1 * p2) * DELTA * BETA for y in (Y1, Y2))
    assert result.communication["reduction"] == pytest.approx(gathered)
    exchanged = 2 * (p1 - 1) * (ALPHA + W / (p1 * p2) * DELTA * BETA)
    assert result.communication["gradient"] == pytest.approx(exchanged)


def test_data_and_spatial():
    p1, p2 = 2, 4
    split = spatial((p2, 1), sample=(1, p1))
    result = closed_form_step(
        "paradl", network(), plan((p2, p1), **split), machine(cluster(p2, p1))
    )
    assert result.strategy == "data+spatial"
    per_sample = (2 * M1 + 3 * M2) / p2 + 3 * M3
    seconds = BATCH / p1 * 2 * per_sample / FLOP_RATE
    assert result.forward + result.backward == pytest.approx(seconds)
    assert result.update == pytest.approx(WU)
    # all ranks hold all weights
    assert result.communication["gradient"] == pytest.approx(ring(p1 * p2, W * DELTA))
    items = BATCH / p1 * (4 + 8 + 8)
    assert result.communication["halo"] == pytest.approx(2 * (3 * ALPHA + items * DELTA * BETA))


def test_alpha_and_beta_are_those_of_the_levels_that_a_group_crosses():
    inner, outer = cluster(2, 2), cluster(2, 2)
    slow = replace(outer.levels[1], latency=5 * ALPHA, bandwidth=BANDWIDTH / 3)
    where = replace(inner, levels=(inner.levels[0], slow))
    sizes = {(2, 1): (ALPHA, BETA, 2), (1, 2): (5 * ALPHA, 3 * BETA, 2)}
    sizes[(2, 2)] = (5 * ALPHA, 3 * BETA, 4)
    for ways, (alpha, beta, p) in sizes.items():
        used = everywhere(ways, sample=ways)
        result = closed_form_step("paradl", network(), used, machine(where, ways))
        expected = 2 * (p - 1) * (alpha + W * DELTA / p * beta)
        assert result.communication["gradient"] == pytest.approx(expected)


def test_measured_times_hold_the_launch():
    # 4 layers forward; 3 gradients of weights and 3 of inputs; each takes no less than its launch
    work = machine(cluster(1), launch_time=1e-3)
    result = closed_form_step("paradl", network(), plan((1,)), work)
    assert result.forward == pytest.approx(4e-3)
    assert result.backward == pytest.approx(6e-3)


@pytest.mark.parametrize("segments", [1, 2, 8])
def test_pipeline(segments):
    p = 2
    stages = {"conv1": 0, "relu1": 0, "conv2": 1, "fc": 1}
    result = paradl.pipeline_time(network(), stages, segments, machine(cluster(p)))
    turns = (p + segments - 1) * BATCH / segments
    assert result.forward == pytest.approx(turns * 2 * (M2 + M3) / FLOP_RATE)
    assert result.backward == pytest.approx(turns * 4 * (M2 + M3) / FLOP_RATE)
    # once an iteration, not once a turn
    assert result.update == pytest.approx((W2 + W3) / UPDATE_RATE)
    message = ALPHA + BATCH / segments * Y1 * DELTA * BETA
    assert result.communication["stage"] == pytest.approx(2 * (p + segments - 2) * message)


def test_pipelines_that_cannot_run_are_refused():
    stages = {"conv1": 0, "relu1": 0, "conv2": 1, "fc": 1}
    for broken, segments, words in [
        (stages, 9, "segment"),
        ({**stages, "fc": 2}, 1, "'fc'"),
        ({**stages, "fc": 0}, 1, "'fc' must not run in an earlier stage"),
        (dict.fromkeys(stages, 0), 1, "stage 1 of 2 has none"),
    ]:
        with pytest.raises(InputError, match=words):
            paradl.pipeline_time(network(), broken, segments, machine(cluster(2)))


MIXED = {
    "filter then channel": (plan((4,), **{**weighted(filter=(4,)), "fc": {"channel": (4,)}}), "fc"),
    "other degrees": (plan((4,), **{**weighted(filter=(4,)), "conv2": {"filter": (2,)}}), "conv2"),
    "one layer whole": (plan((4,), **{**weighted(filter=(4,)), "conv2": {}}), "conv2"),
    "other samples": (
        {**everywhere((4,), sample=(4,)), "fc": Distribution(degrees={}, shape=(4,))},
        "fc",
    ),
    "two at once": (plan((4,), **weighted(filter=(2,), channel=(2,))), "conv1"),
    "kept split": (plan((4,), **{**weighted(filter=(4,)), "relu1": {"channel": (4,)}}), "relu1"),
    "split again": (plan((4,), conv2={"width": (4,)}), "conv1"),
    "not in the table": (everywhere((2, 2), sample=(2, 1), channel=(1, 2)), "relu1"),
    "idle devices": (everywhere((4,), sample=(2,)), "conv1"),
}


@pytest.mark.parametrize("case", MIXED)
def test_paradl_refuses_mixed_plans_and_names_the_layer(case):
    distributions, layer = MIXED[case]
    shape = distributions["fc"].shape
    with pytest.raises(InputError, match=f"layer '{layer}'"):
        closed_form_step("paradl", network(), distributions, machine(cluster(*shape)))


def paleo_passes(samples: float, ways: int = 1, peak: float = 0.62) -> tuple[float, float]:
    """Forward and backward of the convolutions and fc, filters split; relu is traffic alone."""
    flops = 2 * samples / ways * (M1 + M2 + M3)
    back = 2 * samples / ways * (M1 + 2 * M2 + 2 * M3)
    xs, ys, ws = (64, Y1, Y2), (Y1, Y2, Y3), (W1, W2, W3)
    once = [samples * x + (samples * y + w) / ways for x, y, w in zip(xs, ys, ws, strict=True)]
    relu_there, relu_back = 2 * samples * Y1, 3 * samples * Y1
    there = (sum(once) + relu_there) * DELTA
    backwards = (once[0] + 2 * once[1] + 2 * once[2] + relu_back) * DELTA
    rate, memory = peak * FLOP_RATE, 900e9
    return flops / rate + there / memory, back / rate + backwards / memory


@pytest.mark.parametrize("p", [1, 2, 8])
def test_paleo_data(p):
    result = closed_form_step(
        "paleo", network(), everywhere((p,), sample=(p,)), machine(cluster(p))
    )
    forward, backward = paleo_passes(BATCH / p)
    assert result.forward == pytest.approx(forward)
    assert result.backward == pytest.approx(backward)
    # SGD with momentum moves five numbers a weight
    assert result.update == pytest.approx(20 * W / 900e9)
    levels = math.ceil(math.log2(p))
    assert result.communication["gradient"] == pytest.approx(
        2 * levels * (ALPHA + W * DELTA * BETA)
    )
    assert result.total == pytest.approx(
        forward + backward + result.update + result.communication["gradient"]
    )


def test_paleo_filter():
    p = 4
    split = weighted(filter=(p,))
    result = closed_form_step("paleo", network(), plan((p,), **split), machine(cluster(p)))
    assert result.strategy == "filter"
    forward, backward = paleo_passes(BATCH, p)
    assert result.forward == pytest.approx(forward)
    assert result.backward == pytest.approx(backward)
    fetched = 2 * (p - 1) * sum(ALPHA + BATCH * x / p * DELTA * BETA for x in (Y1, Y2))
    assert result.communication["reduction"] == pytest.approx(fetched)
    assert result.communication["gradient"] == 0.0


def test_paleo_hybrid_of_convolutions_by_sample_and_the_rest_by_filter():
    p = 4
    split = {name: {"sample": (p,)} for name in ("conv1", "relu1", "conv2")}
    split["fc"] = {"filter": (p,)}
    result = closed_form_step("paleo", network(), plan((p,), **split), machine(cluster(p)))
    assert result.strategy == "data+filter"
    fetched = 2 * (p - 1) * (ALPHA + BATCH * Y2 / p * DELTA * BETA)
    assert result.communication["reduction"] == pytest.approx(fetched)
    # the weights of fc are held once
    assert result.communication["gradient"] == pytest.approx(
        2 * 2 * (ALPHA + (W1 + W2) * DELTA * BETA)
    )


@pytest.mark.parametrize(("scheme", "steps"), [("one_to_all", 14), ("tree", 6), ("butterfly", 3)])
def test_paleo_schemes(scheme, steps):
    used, where = everywhere((8,), sample=(8,)), machine(cluster(8))
    result = paleo.paleo_step(network(), used, where, scheme=scheme)
    assert result.communication["gradient"] == pytest.approx(steps * (ALPHA + W * DELTA * BETA))


def test_paleo_counts_the_platforms_percent_of_peak():
    used, where = plan((1,)), machine(cluster(1))
    for percent in (0.25, 1.0):
        result = paleo.paleo_step(network(), used, where, percent_of_peak=percent)
        assert result.forward == pytest.approx(paleo_passes(BATCH, peak=percent)[0])
    with pytest.raises(InputError, match="percent of peak"):
        paleo.paleo_step(network(), used, where, percent_of_peak=62)
    with pytest.raises(InputError, match="scheme"):
        paleo.paleo_step(network(), used, where, scheme="ring")


@pytest.mark.parametrize("dim", ["width", "channel"])
def test_paleo_refuses_other_splits_and_names_the_layer(dim):
    distributions = plan((2,), conv2={dim: (2,)})
    with pytest.raises(InputError, match="layer 'conv2'"):
        closed_form_step("paleo", network(), distributions, machine(cluster(2)))


@pytest.mark.parametrize("model", CLOSED_FORMS)
def test_every_layer_must_have_a_distribution(model):
    distributions = plan((1,))
    del distributions["fc"]
    with pytest.raises(InputError, match="'fc'"):
        closed_form_step(model, network(), distributions, machine(cluster(1)))


def test_unknown_models_are_refused():
    with pytest.raises(InputError, match="paradl, paleo"):
        closed_form_step("flexflow", network(), plan((1,)), machine(cluster(1)))
