"""Why nothing fits: which layer holds most, how many bytes are short, and what would help."""

from __future__ import annotations

import math

from costmodels.step.memory import LayerMemory
from costmodels.units import format_bytes
from planner.errors import InfeasibleError
from planner.planning.costing import Costed
from planner.planning.search_plan import PlanSearchResult
from planner.request.setting import Setting

# Holders of memory that shrink with the batch; all others stay.
SHRINKING = ("activations", "activation gradients", "workspace", "communication buffers")
# Size of an element of fp32, which half the precision halves. [B]
FULL_PRECISION_SIZE = 4


def infeasible_error(setting: Setting, found: PlanSearchResult) -> InfeasibleError:
    """Which layer, how many bytes short, and what would make it fit."""
    device = setting.cluster.device
    tightest = found.tightest
    assert tightest is not None, "every search costs at least one assignment"
    holders = tightest.memory.holders
    missing = tightest.memory.total - device.memory
    layer = max(tightest.sizes, key=lambda name: _held_by(tightest.sizes[name]))
    largest = max((holder for holder in holders if holder != "reserved"), key=holders.__getitem__)
    return InfeasibleError(
        f"no plan found fits in memory: the smallest needs {format_bytes(tightest.memory.total)} a "
        f"GPU, {format_bytes(missing)} more than the {format_bytes(device.memory)} of "
        f"{device.name}, mostly {largest}, with layer '{layer}' holding most "
        f"({tightest.memory.moment}); try {' or '.join(_ways_out(setting, tightest))}",
        missing_bytes=missing,
        layer=layer,
    )


def _held_by(sizes: LayerMemory) -> float:
    """Memory that a layer alone accounts for. [B]"""
    return sizes.output + sizes.weights + sizes.gradients + sizes.state + sizes.saved


def _ways_out(setting: Setting, tightest: Costed) -> list[str]:
    """What would make the assignment of least memory fit, a phrase each."""
    device, holders = setting.cluster.device, tightest.memory.holders
    ways = [f"devices with {format_bytes(tightest.memory.total)}"]
    needed, usable = tightest.memory.total - holders["reserved"], device.usable_memory
    fixed = needed - sum(holders[holder] for holder in SHRINKING)
    if fixed < usable:
        batch = int(setting.batch * (usable - fixed) / (needed - fixed))
        if 1 <= batch < setting.batch:
            ways.append(f"a global batch of about {batch} instead of {setting.batch}")
    gpus = setting.gpus * math.ceil(needed / usable)
    if gpus <= setting.cluster.num_devices:
        ways.append(f"about {gpus} GPUs")
    full = setting.machine.training.activation_size == FULL_PRECISION_SIZE
    if full and "bf16" in device.peak_flops:
        ways.append("precision bf16")
    return ways
