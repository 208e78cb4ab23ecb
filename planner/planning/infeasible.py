"""Why there is no plan: which layer holds most, how many bytes are short, and what would help."""

from __future__ import annotations

import math

from costmodels.step.memory import LayerMemory
from costmodels.units import format_bytes
from planner.errors import InfeasibleError
from planner.planning.search_plan import PlanSearchResult
from planner.planning.space.costing import Costed
from planner.request.setting import Setting

# Holders of memory that shrink with the batch; all others stay.
SHRINKING = ("activations", "activation gradients", "workspace", "communication buffers")
# Size of an element of fp32, which half the precision halves. [B]
FULL_PRECISION_SIZE = 4


def infeasible_error(setting: Setting, found: PlanSearchResult) -> InfeasibleError:
    """Which layer, how many bytes short, what would make it fit, and whether that is proven."""
    device, known = setting.cluster.device, found.incumbent
    tightest = found.tightest
    if tightest is None:
        return stopped_error(known.stopped_by or "time limit")
    holders = tightest.memory.holders
    missing = tightest.memory.total - device.memory
    layer = max(tightest.sizes, key=lambda name: _held_by(tightest.sizes[name]))
    largest = max((holder for holder in holders if holder != "reserved"), key=holders.__getitem__)
    proven = found.least_memory > device.memory
    return InfeasibleError(
        f"{_verdict(found, proven=proven)}: the smallest found needs "
        f"{format_bytes(tightest.memory.total)} a GPU, {format_bytes(missing)} more than the "
        f"{format_bytes(device.memory)} of {device.name}, mostly {largest}, with layer '{layer}' "
        f"holding most ({tightest.memory.moment}); try "
        f"{' or '.join(_ways_out(setting, tightest))}",
        missing_bytes=missing,
        layer=layer,
        proven=proven,
        stopped_by="" if proven else known.stopped_by,
    )


def short_error(setting: Setting, short: float, simulated: int, stopped_by: str) -> InfeasibleError:
    """That what the search took to fit does not when it is simulated.

    Parameters
    ----------
    setting
        The question.
    short
        What a device lacks for the smallest. [B]
    simulated
        Plans that were simulated. [items]
    stopped_by
        What cut the search short.
    """
    device = setting.cluster.device
    return InfeasibleError(
        "no plan was found that fits in memory, nor is it proven that none does: the smallest of "
        f"{simulated} simulated needs {format_bytes(short)} more than the "
        f"{format_bytes(device.memory)} of {device.name}; give as much more, or a smaller batch",
        missing_bytes=short,
        layer="",
        proven=False,
        stopped_by=stopped_by,
    )


def stopped_error(stopped_by: str) -> InfeasibleError:
    """That a search ended before anything was costed.

    Parameters
    ----------
    stopped_by
        What cut it short.
    """
    way_out = "raise the time limit" if stopped_by == "time limit" else "let it go on"
    return InfeasibleError(
        f"stopped before a plan was found, by the {stopped_by}: not one strategy was costed by "
        f"then; {way_out}",
        missing_bytes=0.0,
        layer="",
        proven=False,
        stopped_by=stopped_by,
    )


def _verdict(found: PlanSearchResult, *, proven: bool) -> str:
    """What is known of plans that fit, and no more than that."""
    known = found.incumbent
    if proven:
        return (
            "no plan fits in memory, since every split of the layers needs "
            f"{format_bytes(found.least_memory)} a GPU or more"
        )
    if known.infeasible:
        return (
            "no plan was found that fits in memory: the candidates searched hold none, though it "
            "is not proven of all others"
        )
    if known.stopped_by:
        return (
            f"stopped before a plan was found, by the {known.stopped_by}: none so far fits in "
            "memory, nor is it proven that none does"
        )
    return "no plan found fits in memory, nor is it proven that none does"


def _held_by(sizes: LayerMemory) -> float:
    """Memory that a layer alone accounts for. [B]"""
    return sizes.kept + sizes.weights + sizes.gradients + sizes.state + sizes.saved


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
