"""Why what is held fixed and ruled out leaves nothing: which of it, and what could be instead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planner.errors import ContradictionError
from planner.joint.choices import Choice, num_blocks
from planner.joint.variants import forward_first
from planner.joint.ways_inside import SHORTEST_PART
from planner.joint.wishes import FORBIDDEN, KEPT, Wishes
from planner.request.setting import Setting

# Limits of what can be held fixed, which the values that are told keep to.
_RULES: Mapping[str, str] = {
    "dp": "it must divide the {gpus} GPUs and the batch",
    "tp": "it must divide the {gpus} GPUs, and lie within a host of {host}",
    "pp": "it must divide the {gpus} GPUs into at most {blocks} stages that can share the batch",
    "cp": "it must divide the {gpus} GPUs, and leave attention {shortest:,} positions or more",
    "ep": "it must divide the {experts} experts, and etp times that be a multiple of tp times cp",
    "etp": "it must be tp, or 1 with sequence parallelism",
    "micro_batches": "it must divide the samples of a replica",
    "micro_batch_size": "it must divide the samples of a replica",
    "chunks": "it must leave a block of {blocks} to each chunk of each group",
    "shard_size": "it must divide the ranks that something of their weights is cut over (zero)",
}
_NO_EXPERTS = "the network has no experts"
_NO_ATTENTION = "the network has no attention"
# Values that are told of, the rest counted. [items]
_MOST_VALUES = 12


class _Wish(Struct, frozen=True):
    """One thing that is held fixed or ruled out.

    Parameters
    ----------
    words
        It, as it is told.
    name
        Of `KEPT`, where it is held fixed.
    allows
        Whether a choice is so.
    """

    words: str
    name: str
    allows: Callable[[Choice], bool]


def contradiction(setting: Setting, wishes: Wishes, every: Sequence[Choice]) -> ContradictionError:
    """That nothing is left of all choices, and why.

    Parameters
    ----------
    setting, wishes
        The question.
    every
        All choices, before anything is held fixed.
    """
    orders = (one for choice in every for one in _in_any_order(setting, choice))
    some = [wishes.with_shards(one) for choice in orders for one in _in_hosts(choice, wishes)]
    at_fault = _at_fault(_wishes(wishes), some)
    return leaves_nothing(setting, len(every), _why(setting, wishes, at_fault, some))


def leaves_nothing(setting: Setting, count: int, why: str) -> ContradictionError:
    """That what is held fixed and ruled out leaves nothing.

    Parameters
    ----------
    setting
        The question.
    count
        All choices. [items]
    why
        Which of it, and the limit.
    """
    model, gpus, batch = setting.model.name, setting.gpus, setting.batch
    return ContradictionError(
        f"what is kept and forbidden must leave something of the {count:,} ways to train {model} "
        f"on {gpus} GPUs with a batch of {batch} but leaves nothing: {why}"
    )


def _in_any_order(setting: Setting, choice: Choice) -> list[Choice]:
    """The choice, and with all forward passes first where it can be."""
    return list(dict.fromkeys((choice, forward_first(setting, choice))))


def _in_hosts(choice: Choice, wishes: Wishes) -> list[Choice]:
    """The choice with what must wait in the hosts, and without where that is ruled out, too."""
    ruled_out = "offload" in wishes.forbid
    kept = replace(wishes, forbid=()).kept_offload
    waiting = [replace(choice, offload=kept)] if kept else [choice]
    return [*waiting, choice] if kept and ruled_out else waiting


def _wishes(wishes: Wishes) -> list[_Wish]:
    """All of them: the framework, without which no other helps, and what is held fixed last."""
    found: list[_Wish] = []
    if wishes.framework is not None:
        alone = replace(wishes, keep={}, forbid=())
        found.append(_Wish(_must_run(wishes), "", alone.allows))
    found += [_Wish(f"{one} is forbidden", "", _without(one)) for one in wishes.forbid]
    kept = wishes.keep.items()
    return found + [
        _Wish(f"{name}={value} is kept", name, _with(name, value)) for name, value in kept
    ]


def _without(name: str) -> Callable[[Choice], bool]:
    return lambda one: not FORBIDDEN[name](one)


def _with(name: str, value: object) -> Callable[[Choice], bool]:
    return lambda one: KEPT[name](one) == value


def _at_fault(wishes: Sequence[_Wish], every: Sequence[Choice]) -> Sequence[_Wish]:
    """The fewest wishes that together leave nothing of all choices."""
    left = [{place for place, one in enumerate(every) if wish.allows(one)} for wish in wishes]
    for count in range(1, len(wishes)):
        for places in itertools.combinations(range(len(wishes)), count):
            if not set.intersection(*(left[place] for place in places)):
                return [wishes[place] for place in places]
    return wishes


def _why(
    setting: Setting, wishes: Wishes, at_fault: Sequence[_Wish], every: Sequence[Choice]
) -> str:
    """The wishes at fault, and what the last of them could be with the others."""
    *others, last = at_fault
    words = " and ".join(wish.words for wish in at_fault)
    if not last.name:
        return f"{words}; {_instead(wishes, at_fault)}"
    values = {KEPT[last.name](one) for one in every if all(wish.allows(one) for wish in others)}
    told = [str(value) for value in sorted(values, key=lambda value: (str(type(value)), value))]
    more = [f"{len(told) - _MOST_VALUES} more"] if len(told) > _MOST_VALUES else []
    *first, final = told[:_MOST_VALUES] + more
    can_be = f"{', '.join(first)} or {final}" if first else f"{final} alone"
    experts = max(layer.dims.get("expert", 0) for layer in setting.graph.compute_layers)
    rule = _NO_EXPERTS if last.name in ("ep", "etp") and not experts else _RULES.get(last.name, "")
    if last.name in ("cp", "sequence_parallel") and not wishes.attends:
        rule = _NO_ATTENTION
    rule = rule.format(
        gpus=setting.gpus,
        host=setting.cluster.devices_per_host,
        blocks=num_blocks(setting.graph),
        shortest=SHORTEST_PART,
        experts=experts,
    )
    rule = f", since {rule}" if rule else ""
    return (
        f"{words}, but {last.name} can{' then' * bool(others)} be {can_be}{rule}; keep one of these"
    )


def _instead(wishes: Wishes, at_fault: Sequence[_Wish]) -> str:
    """What to do where nothing that is held fixed is at fault."""
    by_framework = any(wish.words == _must_run(wishes) for wish in at_fault)
    if not by_framework:
        return "forbid less"
    less = "use other GPUs or another batch" if len(at_fault) == 1 else "forbid less"
    return f"{less}, or leave --for out"


def _must_run(wishes: Wishes) -> str:
    return f"{wishes.framework} must run it"
