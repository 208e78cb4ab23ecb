"""What a user holds fixed or does not want: `--keep tp=8,pp=4` and `--forbid context,recompute`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.errors import InputError, closest
from costmodels.graph import Layer
from costmodels.step.training import Training
from planner.errors import ConflictError
from planner.joint.choices import FORWARD_FIRST, Choice, choice_of
from planner.joint.variants import forward_first, is_variant
from planner.request.frameworks import FRAMEWORKS, WayToTrain
from planner.request.inputs.degrees import OFFLOADED, names_of
from planner.request.parts import Degrees
from planner.request.setting import Setting

# What can be held fixed, and what it is of a choice.
KEPT: Mapping[str, Callable[[Choice], object]] = {
    "dp": lambda one: one.dp,
    "tp": lambda one: one.inside.tp,
    "pp": lambda one: one.pp,
    "cp": lambda one: one.inside.cp,
    "ep": lambda one: one.inside.ep,
    "etp": lambda one: one.inside.ways_in_expert,
    "sequence_parallel": lambda one: int(one.inside.sequence_parallel),
    "micro_batches": lambda one: one.micro_batches,
    "micro_batch_size": lambda one: one.samples,
    "chunks": lambda one: one.chunks,
    "zero": lambda one: one.zero,
    "shard_size": lambda one: one.shard_size,
    "recompute": lambda one: one.inside.recompute,
    "schedule": lambda one: one.schedule,
    "offload": lambda one: "+".join(one.offload) or "none",
}
_WORDS = {"yes": 1, "true": 1, "no": 0, "false": 0}
# What can be ruled out, and when a choice has it.
FORBIDDEN: Mapping[str, Callable[[Choice], bool]] = {
    "data": lambda one: one.dp > 1,
    "tensor": lambda one: one.inside.tp > 1,
    "pipeline": lambda one: one.pp > 1,
    "context": lambda one: one.inside.cp > 1,
    "expert": lambda one: one.inside.ep > 1,
    "sequence": lambda one: one.inside.sequence_parallel,
    "accumulation": lambda one: one.micro_batches > 1 and one.pp == 1,
    "interleaving": lambda one: one.chunks > 1,
    "zero-bubble": lambda one: one.schedule == "zero-bubble",
    "gpipe": lambda one: one.runs_forward_first,
    "all-to-all": lambda one: one.inside.cp_kind == "all-to-all",
    "sharding": lambda one: one.zero > 0,
    "hybrid": lambda one: one.shard_size > 0,
    "recompute": lambda one: one.inside.recompute != "none",
    "offload": lambda one: bool(one.offload),
}

# What a plan of one stage, without micro-batches, has.
_ONE_STAGE: Mapping[str, object] = {
    "pp": 1,
    "micro_batches": 1,
    "chunks": 1,
    "zero": 0,
    "shard_size": 0,
    "recompute": "none",
    "offload": "none",
}
# What is no split of a layer; without the first, a plan is nothing but splits.
_NEEDED_TO_LEAVE = frozenset({"pipeline", "accumulation", "sharding", "recompute"})
_BEYOND_SPLITS = _NEEDED_TO_LEAVE | {
    *("interleaving", "zero-bubble", "gpipe", "all-to-all", "hybrid", "offload"),
}
# What every plan has where that is ruled out, so that it may as well be kept.
_WITHOUT: Mapping[str, tuple[str, int]] = {
    "context": ("cp", 1),
    "expert": ("ep", 1),
    "sequence": ("sequence_parallel", 0),
}
# Of these, what splits layer by layer can do without: a dim that some layers are not split by.
_UNSPLIT: Mapping[str, Callable[[Layer], str]] = {
    "context": lambda layer: "sequence" if layer.kind == "attention" else "",
    "expert": lambda _: "expert",
}


class Wishes(Struct, frozen=True, kw_only=True):
    """What every choice must have, and what none may.

    Parameters
    ----------
    keep
        Values by what they are of, see `KEPT`.
    forbid
        Names in `FORBIDDEN`.
    framework, attends, on_tokens, optimizer
        The one that must be able to run the plan, whether that is for a transformer, and one of a
        single stack of blocks on tokens, and the optimizer; empty where nothing is said.
    """

    keep: Mapping[str, object] = field(default_factory=dict)
    forbid: tuple[str, ...] = ()
    framework: str | None = None
    attends: bool = True
    on_tokens: bool = True
    optimizer: str = ""

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.keep or self.forbid or self.framework)

    @property
    def kept_offload(self) -> tuple[str, ...] | None:
        """What must wait in the memory of the hosts, None where that is free."""
        if "offload" in self.forbid:
            return ()
        kept = self.keep.get("offload")
        if kept is None:
            return None
        return () if kept == "none" else tuple(str(kept).split("+"))

    @property
    def kept_tp(self) -> int | None:
        """Ways of tensor parallelism, None where those are free."""
        kept = 1 if "tensor" in self.forbid else self.keep.get("tp")
        return kept if isinstance(kept, int) else None

    @property
    def leaves_splits(self) -> bool:
        """Whether the splits of one stage are free, layer by layer."""
        # networks without attention have nothing of all that
        without = _UNSPLIT if self.attends else _WITHOUT
        kept = {**_ONE_STAGE, **dict(_WITHOUT[name] for name in without)}
        whole = all(kept.get(name) == value for name, value in self.keep.items())
        free = self.framework is None or FRAMEWORKS[self.framework].by_layer
        return free and whole and _BEYOND_SPLITS.union(without).issuperset(self.forbid)

    def with_splits_left(self, setting: Setting) -> Setting:
        """The question with layers that cannot be split in ways that are ruled out."""
        ruled_out = [
            dim
            for name, dim in _UNSPLIT.items()
            if self.attends and (name in self.forbid or _WITHOUT[name] in self.keep.items())
        ]
        if not ruled_out:
            return setting
        layers = {
            name: replace(layer, splittable=layer.splittable - {dim(layer) for dim in ruled_out})
            for name, layer in setting.graph.layers.items()
        }
        return replace(setting, graph=replace(setting.graph, layers=layers))

    @property
    def leaves_bubbles(self) -> bool:
        """Whether backward passes of weights may run by themselves."""
        kept = self.keep.get("schedule", "zero-bubble")
        return kept == "zero-bubble" and "zero-bubble" not in self.forbid

    @property
    def leaves_some_again(self) -> bool:
        """Whether some blocks may be computed again: frameworks compute all of them or none."""
        free = "recompute" not in self.keep and "recompute" not in self.forbid
        return free and self.framework is None

    @property
    def leaves_shards(self) -> bool:
        """Whether shards may lie on fewer ranks than all that hold a weight."""
        framework = FRAMEWORKS.get(self.framework or "")
        runs = framework is None or framework.shards_over_some
        return runs and "shard_size" not in self.keep and "hybrid" not in self.forbid

    def as_kept(self, setting: Setting, choice: Choice) -> Choice:
        """A choice with what must be in another order, cut or wait in the hosts, where it can.

        Parameters
        ----------
        setting, choice
            The question, and the choice.
        """
        if self.keep.get("schedule") == FORWARD_FIRST:
            choice = forward_first(setting, choice)
        if self.kept_offload and not is_variant(choice):
            choice = replace(choice, offload=self.kept_offload)
        return self.with_shards(choice)

    def with_shards(self, choice: Choice) -> Choice:
        """A choice with its shards on as many ranks as must be, where they can be."""
        size, ranks = self.keep.get("shard_size"), choice.dp * choice.inside.cp
        if not choice.zero or not isinstance(size, int) or not size or ranks % size:
            return choice
        return replace(choice, shard_size=size)

    @property
    def splits_alone(self) -> bool:
        """Whether nothing but those is left."""
        forbidden = _NEEDED_TO_LEAVE.issubset(self.forbid)
        return self.leaves_splits and (self.framework is not None or forbidden)

    def allows(self, choice: Choice) -> bool:
        """Whether a choice is as wished for."""
        framework = FRAMEWORKS.get(self.framework or "")
        if framework is not None and not framework.runs(
            way_of(choice, self.on_tokens, self.optimizer)
        ):
            return False
        # settings of frameworks do not say how context parallelism works
        if framework is not None and FORBIDDEN["all-to-all"](choice):
            return False
        return all(KEPT[name](choice) == value for name, value in self.keep.items()) and not any(
            FORBIDDEN[name](choice) for name in self.forbid
        )

    def allows_usual(self, setting: Setting, degrees: Degrees) -> bool:
        """Whether a usual way to train is as wished for; frameworks take no uneven shares."""
        return self.framework is None and self.allows(choice_of(setting, degrees))

    def check(self, training: Training) -> None:
        """Refuse what contradicts the framework.

        Raises
        ------
        ConflictError
            When something is held fixed, ruled out or asked for that it cannot run.
        """
        if self.framework is None:
            return
        framework = FRAMEWORKS[self.framework]
        for name, kept in self.keep.items():
            value = self.kept_offload if name == "offload" else kept
            usual = getattr(WayToTrain(), name, None)
            if usual is None or not isinstance(value, type(usual) | int):
                continue
            # of what these say nothing without the parallelism that they are of
            given: dict[str, Any] = {"on_tokens": self.on_tokens, "sequence_parallel": True}
            given |= {"pp": 2} if name in ("chunks", "schedule") else {}
            given |= {"optimizer": training.optimizer} if name == "zero" else {}
            given |= {"tp": 2} if name == "sequence_parallel" else {}
            self._refuse(
                framework.lacks(WayToTrain(**{**given, name: value})), f"--keep {name}={kept}"
            )
        asked = WayToTrain(optimizer=training.optimizer, precision=training.precision)
        self._refuse(framework.lacks(asked), "what is asked for")
        if framework.by_layer and not self.leaves_splits:
            raise ConflictError(
                f"--for {self.framework} plans how each layer is split, of which --keep and "
                "--forbid say nothing but pp=1, pipeline, context and the like; leave them out"
            )

    def _refuse(self, sentences: Iterator[str], given: str) -> None:
        for sentence in sentences:
            raise ConflictError(
                f"--for {self.framework} contradicts {given} ({sentence}); leave one out"
            )


def way_of(choice: Choice, on_tokens: bool, optimizer: str = "") -> WayToTrain:
    """What frameworks must be able to run of a choice.

    Parameters
    ----------
    choice
        The choice.
    on_tokens, optimizer
        As of `Wishes`.
    """
    inside = choice.inside
    return WayToTrain(
        tp=inside.tp,
        cp=inside.cp,
        ep=inside.ep,
        etp=inside.ways_in_expert,
        pp=choice.pp,
        chunks=choice.chunks,
        zero=choice.zero,
        sharded_over_some=choice.shard_size > 0,
        shard_ranks=choice.shard_size or choice.dp * inside.cp,
        recompute=str(inside.recompute),
        schedule=choice.schedule,
        optimizer=optimizer,
        on_tokens=on_tokens,
        sequence_parallel=inside.sequence_parallel,
        micro_batches=choice.micro_batches,
        offload=choice.offload,
    )


NO_WISHES = Wishes()


def parse_keep(text: str) -> dict[str, object]:
    """What is held fixed, such as "tp=8,pp=4".

    Raises
    ------
    InputError
        When it names something else, something twice, or no value.
    """
    kept: dict[str, object] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_")
        if name not in KEPT or not equals or not value or name in kept:
            raise InputError.rule(
                "what is kept (--keep)",
                f"be values such as tp=8, of {', '.join(KEPT)}, each once",
                f"'{part}'",
                f"use {closest(name, list(KEPT))}" if name not in KEPT else "correct it",
            )
        number = value.isascii() and value.isdecimal() and len(value) < 10
        if name == "offload" and value != "none":
            names = names_of(value.replace("+", ","), OFFLOADED, "what is kept of offload (--keep)")
            value = "+".join(one for one in OFFLOADED if one in names)
        kept[name] = int(value) if number else _WORDS.get(value, value)
    return kept


def parse_forbid(text: str) -> tuple[str, ...]:
    """What is ruled out, such as "offload,context".

    Raises
    ------
    InputError
        When it names something else.
    """
    names = tuple(dict.fromkeys(filter(None, (piece.strip() for piece in text.split(",")))))
    for name in names:
        if name not in FORBIDDEN:
            raise InputError.rule(
                "what is forbidden (--forbid)",
                f"be some of {', '.join(FORBIDDEN)}",
                f"'{name}'",
                f"use {closest(name, list(FORBIDDEN))}",
            )
    return names
