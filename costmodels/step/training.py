"""How a network is trained, as far as it costs time or memory."""

from __future__ import annotations

from msgspec import Struct

from costmodels.communication.collectives import ALL_REDUCE_ALGORITHMS
from costmodels.compute import ATTENTION_KERNELS
from costmodels.errors import InputError, require_between
from costmodels.step.recipes import USUAL_RECIPE, Recipe, recipe_of

# Bytes of one number of activations and their gradients, of which none is kept in FP8; of weights,
# see `costmodels.step.recipes`.
_SIZES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
# Single-precision numbers that an optimizer keeps for each weight.
_STATE = {"sgd": 1, "adam": 2}
OPTIMIZERS = tuple(_STATE)
MEMORY_MODELS = ("liveness", "retained", "paradl")
EXECUTIONS = ("eager", "compiled", "captured")


class Training(Struct, frozen=True, kw_only=True):
    """Options of a training step.

    Parameters
    ----------
    precision
        "fp32", "tf32", "fp16", "bf16" or "fp8".
    recipe
        Whose mixed precision: what of a weight is held, see `costmodels.step.recipes`.
    optimizer
        "sgd" (with momentum) or "adam".
    halo_overlap
        Whether halos are exchanged while the interior is computed.
    always_cut
        Whether layers with a halo are always computed as an interior and boundaries, and not only
        where that is faster than to wait.
    cuts_backward
        Whether the backward pass of data may be cut so, too; otherwise its halo hides behind the
        filter's gradient only.
    corner_overlap
        Whether the backward halo of a layer that is split along several dims, which has corners,
        travels beside the filter's gradient as others do.
    gradient_overlap
        Whether gradients are all-reduced while the backward pass goes on.
    all_reduce
        Algorithm of gradient all-reduces; "auto" takes the cheapest for each size and group, as
        do groups that cannot run the one named (a tree needs several hosts).
    bucket_bytes
        Gradients are all-reduced together in buckets of about that size. [B]
    execution
        How operations come to the device: "eager", one by one; "compiled", fused; "captured", as a
        graph that is launched at once.
    launch_time
        Time that the host takes to launch an operation: none is faster. It belongs to the runtime
        and its host; 0 stands for captured graphs. [s]
    forward_launches
        How many launches an operation of the forward pass takes, where one process launches it for
        several devices. [items]
    fuses
        What is computed in the kernel of the layer before, of `costmodels.graph.FUSIONS`.
    channels_last
        Whether feature maps lie in memory as tensor cores read them; else convolutions in half
        precision transpose what they read and write.
    winograd
        Whether convolutions may use Winograd's algorithm, which needs workspace that some
        frameworks do not allow.
    memory_model
        "liveness" follows what is allocated when; "retained" keeps the output of every layer and
        the gradients of its inputs, as frameworks do that allocate them once; "paradl" is the
        conservative closed form of Kahira et al.
    keeps_gates
        Whether a gate keeps one half of its features as they come out of the activation, since
        activation and product are two kernels.
    holds_packed
        Whether queries stay in the memory that they came in together with as many keys and values,
        of which attention reads a copy.
    norms_apart
        Whether RMS norms and rotary embeddings run step by step in single precision, each step a
        kernel of its own.
    attention_kernel
        Which kernel computes fused attention, of `costmodels.compute.ATTENTION_KERNELS`; None for
        the one that was measured.
    runs_ahead
        Whether the host launches while the device computes, so that short kernels wait for their
        launch only where all of a pass is shorter than its launches; else each waits for its own.
    logit_kept, logit_scratch
        What the loss keeps of a logit for its backward pass, where that is not the logit's own
        precision; None for that. And what it needs meanwhile. [B]
    """

    precision: str = "fp32"
    recipe: str = USUAL_RECIPE
    optimizer: str = "sgd"
    halo_overlap: bool = True
    always_cut: bool = False
    cuts_backward: bool = True
    corner_overlap: bool = True
    gradient_overlap: bool = True
    all_reduce: str = "auto"
    bucket_bytes: float = 25 * 2**20
    execution: str = "eager"
    launch_time: float = 0.0
    forward_launches: float = 1.0
    fuses: tuple[str, ...] = ()
    channels_last: bool = True
    winograd: bool = True
    memory_model: str = "liveness"
    keeps_gates: bool = False
    holds_packed: bool = False
    norms_apart: bool = False
    logit_kept: float | None = None
    logit_scratch: float = 0.0
    attention_kernel: str | None = None
    runs_ahead: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, tuple(_SIZES)),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("all-reduce algorithm", self.all_reduce, ("auto", *ALL_REDUCE_ALGORITHMS)),
            ("memory model", self.memory_model, MEMORY_MODELS),
            ("execution", self.execution, EXECUTIONS),
            ("attention kernel", self.attention_kernel or "flash-2", ATTENTION_KERNELS),
        ):
            if value not in known:
                raise InputError.rule(
                    f"the {name}",
                    f"be one of {', '.join(known)}",
                    f"'{value}'",
                    "choose one",
                )
        recipe_of(self.recipe, self.precision)
        if not 0 <= self.launch_time < 1:
            raise InputError.rule(
                "the launch time of an operation",
                "be from 0 to 1 s",
                f"{self.launch_time:g} s",
                "PyTorch takes about 70 us",
            )
        require_between(
            "the size of gradient buckets",
            self.bucket_bytes,
            (1, 1e18),
            "PyTorch uses 25 MiB",
            unit="B",
        )

    @property
    def transposes(self) -> bool:
        """Whether convolutions transpose what they read and write: what tensor cores read is not
        what the feature maps are."""
        return not self.channels_last and self.activation_size == 2

    @property
    def held(self) -> Recipe:
        """What is held of one weight, the moments left out."""
        return recipe_of(self.recipe, self.precision)

    @property
    def apart(self) -> dict[str, str]:
        """Operations that run as several kernels, by kind of layer."""
        kernels = {"glu": "glu_apart"} if self.keeps_gates else {}
        if self.norms_apart:
            kernels |= {"rms_norm": "norm_apart", "rotary": "rotary_apart"}
        # a loss that keeps nothing beside the logits is one kernel each way
        return {**kernels, "loss": "loss_apart"} if self.logit_kept else kernels

    @property
    def computing(self) -> tuple[object, ...]:
        """What of the options changes what a layer computes."""
        kernels = (self.runs_ahead, self.launch_time, self.forward_launches, self.transposes)
        return (*kernels, self.precision, self.optimizer, self.accumulated)

    @property
    def accumulated(self) -> float:
        """What adding the gradient of a micro-batch to those before it moves, a weight. [B]"""
        return float(self.held.fresh + 2 * self.held.gradients) if self.held.fresh else 0.0

    @property
    def activation_size(self) -> int:
        """Size of one activation. [B]"""
        return _SIZES[self.precision]

    @property
    def weight_size(self) -> int:
        """Size of one weight with its copies in other types. [B]"""
        return self.held.weights + self.held.copies

    @property
    def frozen_size(self) -> int:
        """Size of one weight that is not trained: autocast keeps no copy of it. [B]"""
        return self.held.weights

    @property
    def gradient_size(self) -> int:
        """Size of one weight gradient. [B]"""
        return self.held.gradients

    @property
    def state_size(self) -> int:
        """Size of the optimizer's state for one weight, its master copy included. [B]"""
        return self.held.master + 4 * _STATE[self.optimizer]

    @property
    def parameter_size(self) -> int:
        """Size of a weight with its gradient and optimizer state. [B]"""
        return self.weight_size + self.gradient_size + self.state_size
