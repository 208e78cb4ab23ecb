"""The words of notes: the one place where facts of a kind become sentences."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.notes import Note as EstimateNote
from search.problem.notes import Note as AnswerNote

AnyNote = AnswerNote | EstimateNote

# Why a usual strategy has no time.
NO_TIME = "the search was stopped before"

# By kind the sentence, with the facts of the note by their names; "{name:is|are}" is the first word
# where that fact is one, else the second.
WORDS: Mapping[str, str] = {
    # the solvers
    "stopped": "The solver {solver} was stopped by the {by}; this is a local optimum.",
    "presolve-cut-short": "Presolve was cut short by the time limit.",
    "no-time-to-compile": (
        "The search for wide problems was left out: its loops are compiled when they are first "
        "used, which takes up to {seconds:.0f} s once; ask once without a time limit."
    ),
    "ranking-cut-short": (
        "Cut short after {assignments} {assignments:assignment|assignments}; better ones may exist."
    ),
    "too-wide": (
        "Elimination would need tables of more than {elements:.3g} entries, or too long; the bound"
        " rests on message passing."
    ),
    "left-to-cp-sat": "Prices left {left} of {candidates} candidates to CP-SAT.",
    "paths-fixed": "Fixed {paths} longest {paths:path|paths} in turn; a heuristic.",
    "dead-end": (
        "The paths fixed first leave no allowed candidates on the path from {node}; use the solver"
        " auto."
    ),
    "none-found": "No assignment within the usage limit was found.",
    "nothing-fits": "Nothing fits the usage limit.",
    "node-forbidden": (
        "Nothing is allowed: every candidate of {node} is forbidden, by itself or by what its"
        " neighbours allow; allow one of them."
    ),
    "pairs-forbidden": (
        "Nothing is allowed: forbidden pairs exclude one another along a cycle of edges."
    ),
    "shortage": (
        "Nothing fits: time step {time_step} needs at least {needed:.0f} bytes of {limit:.0f},"
        " {missing:.0f} too many; most is held by {holders}."
    ),
    # the search of a plan
    "wide-unproven": (
        "the network is too wide for an exact search, which was stopped before proof; the gap says "
        "how far the plan may be off"
    ),
    "too-wide-to-rank": (
        "the network is too wide to rank its best assignments: those met on the way to the bound "
        "were compared"
    ),
    "space-clipped": (
        "{searched} of {sensible} sensible candidates were searched, at most about {cap} a layer "
        "(--cap); the bound holds for all others, too"
    ),
    "bound-withdrawn": (
        "the search found a bound of {bound}, which the simulated step undercuts: it bounds "
        "nothing and is withdrawn; please report the question"
    ),
    "space-not-priced": (
        "there may be {candidates} distributions, too many to price with their shuffles: the bound "
        "counts layers alone"
    ),
    "no-time-to-price": (
        "the search ended before every distribution was priced: the bound counts computation alone"
    ),
    "no-time-for-candidates": (
        "the time limit left no time to cost all splits: about {cap} a layer were searched"
    ),
    "no-time-for-space": (
        "the time limit left no time to search for splits: the usual strategies alone were "
        "compared, and mixtures of them"
    ),
    "no-time-to-simulate": (
        "the time limit left no time to simulate all of the best plans: {simulated} of {wanted} "
        "were simulated"
    ),
    "no-time-for-fewer": "the time limit left no time to look for a plan of fewer GPUs",
    "no-time-for-baselines": "the search was stopped before every usual strategy was costed",
    "search-stopped": "search stopped early by {reason}: best plan so far",
    # the decision by simulation
    "plan-does-not-fit": (
        "the plan does not fit in memory when it is simulated, though the search took it to fit"
    ),
    "simplest-chosen": (
        "the simplest of the plans within 1 % of the fastest was chosen: {changes} "
        "{changes:change|changes} of split between neighbours instead of {others}, and "
        "{slower:.1%} slower"
    ),
    # the search over stages
    "splits-are-simpler": (
        "splits of the layers alone were chosen: with stages, micro-batches, sharding or "
        "recomputation a step takes {seconds}, {gain:.1%} less, which is too little to use them for"
    ),
    "splits-by-degrees": (
        "within each way to train, layers are split by degrees of data, tensor, sequence, context "
        "and expert parallelism, which the bound is of; with other splits of layers no step on "
        "{gpus:this|these} {gpus:,} {gpus:GPU|GPUs} takes less than {bound}, by computation alone"
    ),
    "splits-of-their-own": (
        "the layers of its one stage are each split in their own way, which is faster than all "
        "ways to train that split them by degrees of data and tensor parallelism; however layers "
        "are split, no step on these {gpus:,} GPUs takes less than {bound}, by computation alone, "
        "which is the bound of the plan; ZeRO over some of the replicas is not searched with them"
    ),
    "sharded-splits-of-their-own": (
        "the layers of its one stage are each split in their own way, and what is cut over "
        "replicas makes that faster than all ways to train that split them by degrees of data and "
        "tensor parallelism; the bound is of these and of all splits of one stage without "
        "micro-batches, whatever is cut; with other splits of layers no step on these {gpus:,} "
        "GPUs takes less than {bound}, by computation alone; ZeRO 1 and 2 over some of the "
        "replicas is not searched"
    ),
    "splits-of-their-own-slower": (
        "of {count} {count:way|ways} to train in one stage whose layers are each split in their "
        "own way, which {count:was|were} simulated as well, none that fits is faster by 0.5 %"
    ),
    "mixed-hosts": (
        "hosts of several kinds ({groups}): compared were even shares at the pace of the slowest, "
        "{uneven:,} {uneven:way|ways} to share out samples, or stages of whole blocks, by how fast "
        "each group is, and some groups alone with the others idle; shared out unevenly were the "
        "splits of layers that are fastest with even shares, without stages of several chunks and "
        "without pipelines beside each other; no step of any takes less than {bound}, by "
        "computation and waiting for the slowest GPU"
    ),
    "gpus-left-idle": (
        "{idle} of {gpus} GPUs {idle:is|are} left without work: every way to use {idle:it|them} "
        "that was tried is slower, or does not fit"
    ),
    "single-stage-slower": (
        "the splits of one stage without micro-batches were not searched layer by layer: their "
        "steps take at least {bound}"
    ),
    "single-stage-overtaken": (
        "the splits of one stage without micro-batches were searched layer by layer, though not to "
        "the end: the fastest found that fits takes about {estimate}, and none less than {bound}, "
        "which the bound allows for"
    ),
    "single-stage-crowded": (
        "the splits of one stage without micro-batches were not searched layer by layer: whatever "
        "they are, a GPU keeps {kept} for backward, more than there is room for"
    ),
    "single-stage-unknown": (
        "the splits of one stage without micro-batches were searched layer by layer: none that "
        "fits was found, which is no proof, and the bound allows for one that takes {bound}"
    ),
    "single-stage-bounded": (
        "the splits of one stage without micro-batches were searched layer by layer until it was "
        "known that none that fits takes less than {bound}"
    ),
    "single-stage-under": (
        "the splits of one stage were not searched layer by layer, which is done under the usual "
        "runtime alone, and not under {runtime}"
    ),
    "usual-is-faster": (
        "the plan is a usual way to train under the runtime {runtime}, which was simulated as it "
        "is: ways like it with other degrees were not searched"
    ),
    "buckets-of-its-own": (
        "the gradient buckets that were asked for are those of ddp: {runtime}, under which the "
        "plan runs, has its own"
    ),
    "degrees-left-out": (
        "{count} of the degrees tried {count:was|were} left out, the first since {first}"
    ),
    "several-meshes": (
        "the layers need {count} meshes of ranks, and no splits along one that fit were found: "
        "'planner export' to fsdp2 and jax refuses the plan"
    ),
    # the plan
    "older-plan": (
        "the plan was made by an older version: its times are those that the search thought with, "
        "not simulated ones; 'planner simulate' and 'planner evaluate' simulate it"
    ),
    "least-memory": (
        "the least memory found is {found} a GPU; proven: no split of the layers of one stage fits "
        "in less than {bound}; ZeRO, micro-batches, recomputation, stages or offload may make do "
        "with less, which --memory searches"
    ),
    "plan-differs": "the plan was made for other inputs: {inputs}",
    "opaque-layers": (
        "{part:.1%} of the computation is of opaque layers, costed by the bytes that they read and "
        "write and split by sample only: {layers}"
    ),
    "gpus-without-work": (
        "{idle} of {gpus} GPUs {idle:has|have} no work of {idle:its|their} own, and "
        "{idle:repeats|repeat} that of others: {enough} would be enough"
    ),
    "memory-nearly-full": (
        "the peak is {part:.0%} of the memory, and the fragmentation of the framework's allocator "
        "is not modelled: try it before use"
    ),
    # what a step rests on
    "overlap-assumed": (
        "assumed: while gradients travel, computation takes {overlap:.0%} longer, and devices vary "
        "by {variation:.1%}; simulate takes others (--overlap-factor, --variation)"
    ),
    "micro-batches-alike": (
        "the step was run with {run} {run:micro-batch|micro-batches}; {others} "
        "{others:other is|others are} counted as the last of these"
    ),
    "gives-memory-back": (
        "{short} more than there is would keep devices from giving memory back to get other in "
        "every step, which takes time that is not counted: searches choose nothing that does"
    ),
    "links-congested": "links between hosts carry {factor:g} times less, because of other jobs",
    "memory-of-tensors": (
        "memory is that of tensors as they are made and freed, not that of the formula that "
        "--memory-model paradl names, which evaluate and optimize show"
    ),
    "estimated-by-surfaces": (
        "{share:.1%} of the computation is estimated by surfaces transferred from akin measurements"
    ),
    "estimated-by-roofline": (
        "{share:.1%} of the computation is estimated by the roofline, for want of measurements"
    ),
    "tables-correct": (
        "your tables cover {share:.0%} of the time of computation; measured shapes run {pace} "
        "modelled (give or take {spread:.1%}), and all others are corrected by what akin ones say"
    ),
    "tables-cover": (
        "your tables cover {share:.0%} of the time of computation, and say nothing of other shapes"
    ),
    "links-fitted": (
        "the links are fitted to {rows:,} measured {rows:collective|collectives} of your tables"
    ),
    "tables-of-another-device": (
        "the table {table} was measured on {device}, and the step is of {planned}: times that it "
        "has are taken as they are"
    ),
    "table-unused": "the table {table} has no times in {precision}: no computation rests on it",
    "table-repeats": (
        "times that a table has of one shape are up to {apart} apart: their mean is taken; measure "
        "again what varies"
    ),
    "tables-apart": (
        "your tables are up to {apart} apart on one shape: what the first that has it says is "
        "taken; leave out the wrong one"
    ),
    "table-outliers": (
        "measured times that are far off what akin ones say are taken for their own shapes alone: "
        "{which}; measure them again"
    ),
    "rests-on-correction": (
        "without what your tables say of shapes that they lack, other splits of layers with "
        "{share:.0%} of the time would be {gain:.1%} faster: measure both"
    ),
    "rests-on-outliers": (
        "if those times are wrong, other splits of layers with {share:.0%} of the time would be "
        "{gain:.1%} faster"
    ),
    "rests-on-spread": (
        "within the spread of your tables, other splits of layers with {share:.0%} of the time may "
        "be {gain:.1%} faster: measure both"
    ),
    "no-time-to-check-tables": (
        "there was no time to find out whether the plan rests on shapes that your tables lack"
    ),
    "estimated-by-percent-of-peak": (
        "{share:.1%} of the computation is estimated by one percentage of the peak FLOP/s for all "
        "layers, as Paleo does, whatever is measured"
    ),
    "interpolated": "{share:.1%} of the computation is estimated by interpolation in the table",
    "waits-for-launches": (
        "{share:.1%} of the computation waits for the launch of operations ({launch_time} each, "
        "--launch-time), which captured graphs would save"
    ),
    "asynchronous": (
        "throughput is that of {workers} workers that do not wait for each other around {servers} "
        "parameter {servers:server|servers}, whose links are {utilisation:.0%} in use (Li et al. "
        "2022); queues, memory and the trace are those of a synchronous step"
    ),
    # a strategy from what is written down of it
    "entry-leaves-out": (
        "{entry} leaves out {layers}, which cannot be split by {dims} and follow their neighbours"
    ),
    "same-work": (
        "{entry} splits {ways} ways over {devices} devices, so that groups of {alike} devices do "
        "the same work"
    ),
    "idle-devices": (
        "{idle} of {devices} devices {idle:is|are} in no stage and {idle:does|do} nothing"
    ),
    # splits that follow from others
    "split-not-possible": (
        "a split of {dim} {ways} ways ends where a {layer_kind} layer cannot follow, which is "
        "replicated instead: {layers}"
    ),
    "devices-split-already": (
        "a split of {dim} {ways} ways is not inherited where the devices split {others} already: "
        "{layers}"
    ),
    "axis-needed-whole": (
        "a split of {axis} {ways} ways ends where a {layer_kind} layer needs the whole of it and "
        "is replicated: {layers}"
    ),
    "too-few-samples": (
        "{samples} {samples:sample|samples} of a micro-batch {samples:is|are} too few for "
        "{devices} devices, some of which do the same work: {layers}"
    ),
    # the input of a step
    "input-free": "The input takes no time beside a step of {step}.",
    "input-hidden": (
        "The input does not hold up the step: loading takes {loading} ({bottleneck}), a step "
        "{step}."
    ),
    "input-shared-too-slow": (
        "The input holds up the step: loading takes {loading} ({bottleneck}), a step {step} "
        "without it; more hosts would not help, storage that all hosts share must be "
        "{factor:.2g} times as fast, or samples kept in memory or packed into larger files."
    ),
    "input-too-slow": (
        "The input holds up the step: loading takes {loading} ({bottleneck}), a step {step} "
        "without it; {hosts_needed} hosts' worth of loading instead of {hosts}, or a loader "
        "{factor:.2g} times as fast, would keep up."
    ),
    "loading-estimated": (
        "loading is estimated by the figures of 'planner loaders', not by those of this machine; "
        "--loader-rate takes a measured one"
    ),
    "no-photographs": (
        "samples are no photographs: they are taken as stored in 4 bytes a number, and as decoded "
        "at the rate of photographs"
    ),
}
# Facts of a shortage before those on who holds how much.
_OF_SHORTAGE = 4


def words(note: AnyNote) -> str:
    """The sentence of a note, whose kind must be one of `WORDS`."""
    facts = dict(note.facts)
    if note.kind == "shortage":
        facts = dict(note.facts[:_OF_SHORTAGE])
        held = (f"{name} ({usage:.0f} bytes)" for name, usage in note.facts[_OF_SHORTAGE:])
        facts["holders"] = ", ".join(held)
    shown = {k: _Number(v) if isinstance(v, int) else v for k, v in facts.items()}
    return WORDS[note.kind].format_map(shown)


class _Number(int):
    """A number that chooses between words for one and for several."""

    def __format__(self, spec: str) -> str:
        one, bar, several = spec.partition("|")
        if not bar:
            return super().__format__(spec)
        return one if self == 1 else several
