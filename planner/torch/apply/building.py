"""What a rank has of a plan, beside its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from torch import nn

from costmodels.errors import InputError
from planner.plan import Plan
from planner.plan.sharding import PIPELINE_AXIS
from planner.torch.apply.groups import RankGroup, new_mesh, new_rank_group
from planner.torch.apply.losses import Loss
from planner.torch.apply.meshes import with_axes_of_shards
from planner.torch.apply.program import make_program
from planner.torch.apply.reading import read
from planner.torch.apply.redistribution import MeshRanks, Move
from planner.torch.apply.rules import Held, RankPlace
from planner.torch.apply.staging import StageSteps, stage_programs
from planner.torch.apply.steps import Program
from planner.torch.apply.tracing import traced
from planner.torch.apply.weights import Weight, find_weights

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh


class RankParts(Struct, frozen=True, kw_only=True):
    """What a rank has of a plan, beside its weights.

    Parameters
    ----------
    ranks, mesh
        The ranks of its stages, and all of them.
    program, stages, own
        What all ranks run, what each stage runs, and which stages are those of the rank.
    weights
        All weights of the module.
    result, loss
        What the loss reads, and the loss.
    """

    ranks: MeshRanks
    mesh: DeviceMesh
    program: Program
    stages: list[StageSteps]
    own: list[int]
    weights: dict[str, Weight]
    result: Held
    loss: Loss

    @property
    def is_pipeline(self) -> bool:
        """Whether there is more than one stage."""
        return len(self.stages) > 1

    def users(self, name: str) -> list[int]:
        """Stages that use a weight."""
        return [s.number for s in self.stages if any(one.name == name for one in s.leaves)]


def build_ranks(
    plan: Plan,
    model: nn.Module,
    inputs: object,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    log: Callable[[Move, float, str, bool], None],
) -> RankParts:
    """What a rank runs.

    Parameters
    ----------
    plan, model, inputs, loss
        As of `planner.torch.apply.apply`.
    log
        Is told of what moves.
    """
    plan = with_axes_of_shards(plan)
    whole_mesh = plan.mesh
    names = whole_mesh.names
    device = next((one.device.type for one in model.parameters()), "cpu")
    all_ranks = new_mesh(device, whole_mesh.shape, names)
    mesh, group = all_ranks, 0
    if names[0] == PIPELINE_AXIS and len(plan.sharding.meshes) > 1:  # type: ignore[union-attr]
        group = int(all_ranks.get_local_rank(PIPELINE_AXIS))
        mesh = all_ranks[names[1:]]
    ranks = MeshRanks(mesh, log)
    place = RankPlace(sizes=ranks.sizes, coordinates=ranks.place)
    found = traced(plan, model, inputs)
    weights = find_weights(plan, found, place.sizes)
    used = {name: weight.used for name, weight in weights.items()}
    program = make_program(plan, found, place, ranks, used)
    result = _loss_input(program, loss is not None)
    strategy = plan.strategy
    stages = stage_programs(
        program,
        result.key,
        [stage.layers for stage in strategy.stages],
        [stage.recompute for stage in strategy.stages],
    )
    starts = sorted({stage.first_device for stage in strategy.stages})
    sums = {leaf.sums for stage in stages for leaf in stage.leaves if leaf.sums}
    ranks.make_groups(sums, starts)
    return RankParts(
        ranks=ranks,
        mesh=all_ranks,
        program=program,
        stages=stages,
        own=[n for n, one in enumerate(strategy.stages) if one.first_device == starts[group]],
        weights=weights,
        result=result,
        loss=Loss(ranks=ranks, layout=result.layout, function=loss),
    )


def _loss_input(program: Program, has_function: bool) -> Held:
    """What the loss reads."""
    output = program.traced.outputs[0]
    layer = next((row for row in program.traced.rows if row.kind == "loss"), None)
    if layer is None or program.traced.layer_of(output) == layer.name:
        raise InputError(
            "a module that a plan is applied to must return what its loss reads but returns the "
            "loss, or nothing that one could be added to; return the output, and give apply a loss"
        )
    held = read(program, output, program.held[output], layer.name)
    if has_function and any(part.axes for part in held.layout.dims[-1]):
        raise InputError(
            "a loss of your own must see all features but the plan cuts them over ranks; leave it "
            "out where it is the cross entropy, or plan otherwise"
        )
    return held


def constants_of(program: Program, model: nn.Module) -> dict[object, Tensor]:
    """Buffers and tensors that are written out in the module, by their nodes."""
    traced_module = program.traced
    buffers = dict(model.named_buffers(remove_duplicate=False))
    found: dict[object, Tensor] = {}
    for node in traced_module.nodes:
        if node.name in traced_module.buffers:
            found[node] = buffers[traced_module.buffers[node.name]]
        elif node.name in traced_module.constants:
            found[node] = traced_module.constants[node.name]
    return found


def tied_groups(built: RankParts, plan: Plan) -> dict[str, RankGroup]:
    """For each weight that several groups of ranks use, this rank's peers in these."""
    strategy = plan.strategy
    starts = [stage.first_device for stage in strategy.stages]
    found: dict[str, RankGroup] = {}
    groups: dict[tuple[int, ...], RankGroup | None] = {}
    size = len(built.ranks.sizes) and built.ranks.mesh.size()
    for name in sorted(built.weights):
        firsts = tuple(sorted({starts[number] for number in built.users(name)}))
        if len(firsts) < 2:
            continue
        for offset in range(size):
            peers = tuple(first + offset for first in firsts)
            if peers not in groups:
                groups[peers] = new_rank_group(peers)
            own = groups[peers]
            if own is not None:
                found[name] = own
    return found
