"""How the fastest plan is searched for."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.errors import InputError
from planner.request.frameworks import FRAMEWORKS
from planner.request.inputs.description import AnyInput, Input, at_least, one_of, seed_rule

# What a front can be against.
FRONTS = ("memory", "gpus")


def _solvers() -> Sequence[str]:
    from search import SOLVERS

    return tuple(SOLVERS)


_one_solver = one_of("the search", _solvers, "choose one")


def _refuse_solver(value: str) -> None:
    # that there is "auto" is known without loading the solvers
    if value != "auto":
        _one_solver(value)


def _refuse_time_limit(value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise InputError.rule(
            "the time limit",
            "be a number of seconds above 0",
            f"{value:g}",
            "raise it or leave it out",
        )


SOLVER: Input[str] = Input(
    name="search",
    default="auto",
    option="--search",
    metavar="NAME",
    help="Solver; auto by default.",
    text='Solver: "auto" or a name in `search.SOLVERS`.',
    rule=_refuse_solver,
)
SEED: Input[int] = Input(
    name="seed",
    default=0,
    option="--seed",
    metavar="N",
    kind="whole",
    help="Seed of solvers that need one; 0 by default.",
    text="Seed of solvers that need one.",
    rule=seed_rule("the seed (--seed)"),
)
TIME_LIMIT: Input[float | None] = Input(
    name="time_limit",
    default=None,
    option="--time-limit",
    metavar="SECONDS",
    kind="number",
    help="Stop then with the best plan so far.",
    text="When to stop with the best plan so far; never by default. [s]",
    rule=_refuse_time_limit,
)
CAP: Input[int | None] = Input(
    name="cap",
    default=None,
    option="--cap",
    metavar="N",
    kind="whole",
    help="Candidates that a layer may keep; by default 12,000 over all layers, at least 64.",
    text="Candidates that a layer may keep for the search; by default what makes about 12,000 "
    "over all layers, and at least 64. [items]",
    rule=at_least(1, "the cap on candidates of a layer (--cap)", "raise it"),
)
NUM_BEST: Input[int] = Input(
    name="num_best",
    default=4,
    option="--num-best",
    metavar="N",
    kind="whole",
    help="Best assignments to simulate.",
    text="How many best distinct assignments of the search are simulated. [items]",
    rule=at_least(1, "the number of assignments to cost and simulate (--num-best)", "raise it"),
)
TUNE_TRIALS: Input[int] = Input(
    name="tune_trials",
    default=0,
    option="--tune-trials",
    metavar="N",
    kind="whole",
    help="Bucket sizes and all-reduces to try.",
    text="Settings of bucket size and all-reduce algorithm to try, each with a search of its own; "
    "without any, a few bucket sizes are tried on the plan found. [items]",
    rule=at_least(0, "the number of settings to try (--tune-trials)", "raise it"),
)
LEAST_MEMORY: Input[bool] = Input(
    name="least_memory",
    default=False,
    option="--least-memory",
    kind="switch",
    help="Find the split of the layers of one stage of least peak memory, whatever time it takes, "
    "and what none fits below; --memory finds other ways to train with less.",
    text="Find the split of the layers of one stage of least peak memory, whatever time it takes, "
    "and what none fits below. Other ways to train with less (ZeRO, micro-batches, recomputation, "
    "stages, offload) are found under a limit of memory.",
)
KEEP: Input[str | None] = Input(
    name="keep",
    default=None,
    option="--keep",
    metavar="NAME=N,...",
    help="Hold degrees fixed, such as tp=8,pp=4 or offload=optimizer+weights.",
    text='Degrees to hold fixed, such as "tp=8,pp=4": dp, tp, pp, cp, ep, etp, '
    "sequence_parallel, micro_batches, micro_batch_size, chunks, zero, shard_size (GPUs that "
    "weights are cut over where not all that hold them, else 0), recompute, schedule, offload "
    "(none, or some of activations, weights and optimizer, with + between them).",
)
FORBID: Input[str | None] = Input(
    name="forbid",
    default=None,
    option="--forbid",
    metavar="NAME,...",
    help="Rule out ways to train, such as context,recompute.",
    text='Ways to train to rule out, such as "context,recompute": data, tensor, pipeline, context, '
    "expert, sequence, accumulation, interleaving, sharding, hybrid (weights cut over some of the "
    "GPUs that hold them), recompute, offload.",
)
FRAMEWORK: Input[str | None] = Input(
    name="framework",
    default=None,
    option="--for",
    metavar="FRAMEWORK",
    help="Only plans that a framework can run: torchtitan, megatron, deepspeed, accelerate, fsdp2 "
    "or jax.",
    text="The framework that must be able to run all of the plan: one of those of "
    "`planner.export`; any plan by default.",
    rule=one_of("the framework (--for)", lambda: tuple(FRAMEWORKS), "choose one"),
)
DUMP_PROBLEM: Input[None] = Input(
    name="dump_problem",
    default=None,
    option="--dump-problem",
    metavar="FILE",
    kind="object",
    help="Write the search problem whose optimum bounds the plan, for 'planner solve'; of those "
    "solved for the plan, the one with the best bound. Gzipped if FILE ends in .gz. The plan is "
    "then one of splits of the layers alone, in one stage.",
    text="Where to write the additive problem whose optimum bounds the plan's step from below, in "
    "the form of `search.files.contest`; of those solved for the plan, the one with the best "
    "bound. The plan is then one of splits of the layers alone, in one stage.",
    recorded=False,
)
AGAINST: Input[str] = Input(
    name="against",
    default="memory",
    shown=True,
    option="--against",
    metavar="NAME",
    help="Step time against memory, or throughput against gpus.",
    text='"memory" for step time against peak memory, "gpus" for throughput against GPUs.',
    rule=one_of("what the front is against (--against)", lambda: FRONTS, "choose one"),
)
RUNTIME: Input[str | None] = Input(
    name="runtime",
    default=None,
    option="--runtime",
    metavar="NAME",
    kind="object",
    help="See 'planner runtimes'; as --for has it, else ddp, and fsdp where weights are cut.",
    text="The framework's runtime: a name in `costmodels.simulation.runtimes`, or a runtime; by "
    'default that of `framework`, else "ddp", and "fsdp" where weights are cut.',
)
# Of a search for a front.
FRONT: tuple[AnyInput, ...] = (AGAINST, TIME_LIMIT, KEEP, FORBID, RUNTIME)
# What a plan must be like.
WISHED: tuple[AnyInput, ...] = (KEEP, FORBID, FRAMEWORK, RUNTIME)
SEARCH: tuple[AnyInput, ...] = (
    SOLVER,
    SEED,
    TIME_LIMIT,
    CAP,
    NUM_BEST,
    TUNE_TRIALS,
)
