"""The local work of one pass of one layer, for many candidate distributions at once.

Every field that a distribution may change is a numpy array; the arrays broadcast against each
other, so one `Work` describes hundreds of candidates and every derived quantity is one
vectorised expression. What no distribution changes (kernel, stride, operation, direction) is a
plain value.

Three kinds of operation are told apart:

- *dense* (`conv`, `linear`, `matmul`): a matrix product of m x n outputs contracted over k,
  repeated `batch` times. A convolution is seen as the implicit matrix product that cuDNN runs
  (Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning", section 3).
- `attention`: scores, softmax and weighted values in one kernel that keeps the scores on chip
  (Dao et al. 2022, "FlashAttention"). Its backward pass computes the scores again.
- *memory-bound* (all others): it costs the activations that it must read and write, by the
  counts in `TRAFFIC`, and has no backward-weight pass of its own.

Assumptions: activations are read and written once a pass except where `TRAFFIC` says more; the
halo of a spatial split counts as input if the caller puts it into `in_extents`.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Final

import numpy as np
from msgspec import Struct, structs
from numpy.typing import ArrayLike, NDArray

from costmodels.errors import InputError

FloatArray = NDArray[np.float64]

ELEMENT_SIZE: Final = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Size of one activation or weight. [B]"""

DENSE_OPERATIONS: Final = frozenset({"conv", "linear", "matmul"})
MULTIPLYING_OPERATIONS: Final = DENSE_OPERATIONS | {"attention"}
DENSE_DIRECTIONS: Final = ("forward", "backward_data", "backward_weight")
MEMORY_DIRECTIONS: Final = ("forward", "backward")

TRAFFIC: Final[dict[tuple[str, str], tuple[float, float, float]]] = {
    # (operation, direction): passes over the input, passes over the output, further bytes per
    # output element that do not scale with the precision (masks, argmax indices).
    # Batch norm in training reads the input twice (statistics, then normalisation); its backward
    # pass reads input and output gradient twice and writes the input gradient.
    ("batch_norm", "forward"): (2, 1, 0),
    ("batch_norm", "backward"): (3, 2, 0),
    # A normalised row stays in cache between statistics and normalisation.
    ("layer_norm", "forward"): (1, 1, 0),
    ("layer_norm", "backward"): (3, 2, 0),
    # Max pooling keeps an 8-byte index of the winner per output.
    ("pool", "forward"): (1, 1, 8),
    ("pool", "backward"): (1, 1, 8),
    ("activation", "forward"): (1, 1, 0),
    ("activation", "backward"): (1, 2, 0),
    # `channels` of an addition is that of one operand; the backward pass accumulates the two
    # gradients that meet where the residual branch forks.
    ("add", "forward"): (2, 1, 0),
    ("add", "backward"): (2, 1, 0),
    # `channels` of a concatenation is that of all inputs together.
    ("concat", "forward"): (1, 1, 0),
    ("concat", "backward"): (1, 1, 0),
    ("global_pool", "forward"): (1, 1, 0),
    ("global_pool", "backward"): (1, 1, 0),
    ("softmax", "forward"): (1, 1, 0),
    ("softmax", "backward"): (1, 2, 0),
    # Logarithm of the softmax, then one value per sample; the gradient is written in one pass.
    ("loss", "forward"): (2, 1, 0),
    ("loss", "backward"): (1, 1, 0),
    # In single precision, each step a kernel of its own, as Megatron-LM's and PyTorch's are: logits
    # are cast (6 bytes), searched for the largest (4), less it (8), raised (8), summed up (4) and
    # divided (8); backward multiplies (8) and casts back (6).
    ("loss_apart", "forward"): (0, 0, 38),
    ("loss_apart", "backward"): (0, 0, 14),
    # The activation of one half and the product with the other as kernels of their own.
    ("glu_apart", "forward"): (1, 3, 0),
    ("glu_apart", "backward"): (2, 5, 0),
    # An RMS norm, step by step: cast to single precision (6 bytes), squared (8), averaged (4),
    # scaled (8), cast back (6), weighted (4); backward of the weight (4 + 8), the cast (6), scaling
    # (8), the scale (16), the square (24), their sum (12) and the first cast (6).
    ("norm_apart", "forward"): (0, 0, 36),
    ("norm_apart", "backward"): (0, 0, 84),
    # Queries and keys are cast to single precision, turned as complex numbers, and cast back.
    ("rotary_apart", "forward"): (10, 0, 0),
    ("rotary_apart", "backward"): (10, 0, 0),
    # Both halves are read, and in the backward pass written, too.
    ("glu", "forward"): (1, 1, 0),
    ("glu", "backward"): (2, 1, 0),
    # The input is what is turned or normalised of the output; the rest is left as it is.
    ("rotary", "forward"): (2, 0, 0),
    ("rotary", "backward"): (2, 0, 0),
    ("head_norm", "forward"): (2, 0, 0),
    ("head_norm", "backward"): (3, 0, 0),
    # Tokens are read once for each expert that they go to, and gradients summed on the way back.
    ("dispatch", "forward"): (0, 2, 0),
    ("dispatch", "backward"): (1, 1, 0),
    # The gradient of the scores needs the outputs of the experts again.
    ("combine", "forward"): (1, 1, 0),
    ("combine", "backward"): (2, 1, 0),
    ("dropout", "forward"): (1, 1, 1),
    ("dropout", "backward"): (1, 1, 1),
    # Rows of the table are gathered; the backward pass adds to them.
    ("embedding", "forward"): (0, 2, 8),
    ("embedding", "backward"): (0, 3, 8),
    # A bias is added in place; its gradient sums up that of the output.
    ("bias", "forward"): (1, 1, 0),
    ("bias", "backward"): (1, 0, 0),
    # Each position is the mean of four points, each interpolated from four positions of a map; the
    # backward pass adds to all of them. That none is found in a cache is an assumption.
    ("roi_align", "forward"): (0, 17, 0),
    ("roi_align", "backward"): (0, 33, 0),
    # Within a normalisation an addition reads the other operand; gradients meet as of "add".
    ("fused_add", "forward"): (1, 0, 0),
    ("fused_add", "backward"): (2, 1, 0),
    # Any plain copy, as in packing a halo; of an input into a larger output with room for a halo.
    ("copy", "forward"): (1, 1, 0),
    ("copy", "backward"): (1, 1, 0),
    ("pad", "forward"): (2, 0, 0),
    # A cast of `samples` numbers to FP8, and its transpose (Transformer Engine): 2 bytes to 2 of 1.
    ("fp8_cast", "forward"): (0, 0, 4),
    # Weight updates: `samples` is the number of parameters. State is kept in fp32 whatever the
    # precision: SGD with momentum reads 3 and writes 2 values, Adam reads 4 and writes 3.
    ("sgd_update", "forward"): (0, 0, 20),
    ("adam_update", "forward"): (0, 0, 28),
}

OPERATIONS: Final = MULTIPLYING_OPERATIONS | {operation for operation, _ in TRAFFIC}


def directions_of(operation: str) -> tuple[str, ...]:
    """The passes that an operation has."""
    return DENSE_DIRECTIONS if operation in DENSE_OPERATIONS else MEMORY_DIRECTIONS


def _extent_product(extents: tuple[FloatArray, ...]) -> FloatArray:
    return reduce(np.multiply, extents, np.float64(1.0))  # type: ignore[arg-type]


class MatrixProduct(Struct, frozen=True, kw_only=True):
    """Dims of the (implicit) matrix products of a dense operation, as arrays that broadcast."""

    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray


class Work(Struct, frozen=True, kw_only=True):
    """The local work of one pass of one layer.

    Parameters
    ----------
    operation
        One of `OPERATIONS`.
    direction
        `forward`, `backward_data` or `backward_weight` for dense operations; `forward` or
        `backward` for all others.
    samples
        Local samples. For `matmul` the number of independent products (samples times heads, or
        experts), for `attention` the samples times heads.
    channels
        Local input channels. For `matmul` the contracted extent of the forward pass, for
        `attention` the features of a head's query or key.
    filters
        Local output channels; those of the output also where it has as many as the input. For
        `matmul` the columns of the forward result, for `attention` the features of a head's value.
    in_extents
        Local spatial (or sequence) extents of the input, halo included where it is computed on.
        For `attention` the keys.
    out_extents
        Local spatial (or sequence) extents of the output. For `matmul` the rows of both the
        input and the result, for `attention` the queries.
    kernel
        Kernel size per spatial dim; empty for anything but `conv` and `pool`.
    stride
        Stride per spatial dim. Defaults to 1 in each.
    groups
        Local number of groups of a convolution: `channels / groups` are contracted. For
        `attention` the heads that share one head of keys and values.
    visible
        Share of the keys of an `attention` that its mask shows a query on average: about half of
        them under a causal mask.
    """

    operation: str
    direction: str
    samples: FloatArray
    channels: FloatArray
    filters: FloatArray
    in_extents: tuple[FloatArray, ...] = ()
    out_extents: tuple[FloatArray, ...] = ()
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    groups: FloatArray | int = 1
    visible: FloatArray | float = 1.0

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError.rule(
                "the operation of a work",
                f"be one of {', '.join(sorted(OPERATIONS))}",
                f"'{self.operation}'",
                "give the layer an operation that is one of them",
            )
        allowed = directions_of(self.operation)
        if self.direction not in allowed:
            raise InputError.rule(
                f"the direction of a {self.operation}",
                f"be one of {', '.join(allowed)}",
                f"'{self.direction}'",
                "ask for one of them",
            )
        store = structs.force_setattr
        for name in ("samples", "channels", "filters"):
            store(self, name, _as_extent(name, getattr(self, name)))
        for name in ("in_extents", "out_extents"):
            extents = tuple(_as_extent(name, extent) for extent in getattr(self, name))
            store(self, name, extents)
        if not self.stride:
            store(self, "stride", (1,) * len(self.kernel))
        if len(self.stride) != len(self.kernel):
            raise InputError(
                f"a work must have one stride for each kernel dim but has {len(self.stride)} "
                f"strides for {len(self.kernel)} dims; give both or neither"
            )

    @property
    def is_dense(self) -> bool:
        """Whether the operation is a matrix product."""
        return self.operation in DENSE_OPERATIONS

    @property
    def kernel_volume(self) -> int:
        """Number of kernel taps."""
        return math.prod(self.kernel)

    @property
    def stride_volume(self) -> int:
        """Number of input positions per output position."""
        return math.prod(self.stride)

    @property
    def inputs(self) -> FloatArray:
        """Elements of the local input activation."""
        return self.samples * self.channels * _extent_product(self.in_extents)

    @property
    def outputs(self) -> FloatArray:
        """Elements of the local output activation."""
        return self.samples * self.filters * _extent_product(self.out_extents)

    @property
    def weights(self) -> FloatArray:
        """Elements of the second operand: the local weights, or both-batched for `matmul`."""
        weights = self.channels * self.filters * self.kernel_volume / self.groups
        return weights * self.samples if self.operation == "matmul" else weights

    def products(self) -> list[Work]:
        """The products of matrices that an `attention` is made of, as kernels of their own."""
        keys, queries = _extent_product(self.in_extents), (_extent_product(self.out_extents),)
        ways = DENSE_DIRECTIONS[:1] if self.direction == "forward" else DENSE_DIRECTIONS[1:]
        return [
            Work(
                operation="matmul",
                direction=way,
                samples=self.samples,
                channels=contracted,
                filters=columns,
                in_extents=queries,
                out_extents=queries,
            )
            for way in ways
            for contracted, columns in ((self.channels, keys), (keys, self.filters))
        ]

    def matrix_product(self, *, alignment: int = 1) -> MatrixProduct:
        """Dims of the implicit matrix product that this pass runs.

        With P output and Q input positions, kernel volume R and stride volume S, for samples N,
        channels C, filters F and groups G: forward is (N P) x (F/G) over (C R/G); backward-data
        is (N Q) x (C/G) over (F R/(G S)); backward-weight is (F/G) x (C R/G) over (N P).

        Parameters
        ----------
        alignment
            Multiple to which the channels and filters of a group are padded.
        """
        rows_out = _extent_product(self.out_extents)
        rows_in = _extent_product(self.in_extents)
        batch: FloatArray | int = self.groups
        if self.operation == "matmul":
            batch = self.samples * self.groups
        else:
            rows_out, rows_in = self.samples * rows_out, self.samples * rows_in
        filters, channels = self.filters / self.groups, self.channels / self.groups
        if alignment > 1:
            filters = np.ceil(filters / alignment) * alignment
            channels = np.ceil(channels / alignment) * alignment
        taps = self.kernel_volume
        if self.direction == "forward":
            m, n, k = rows_out, filters, channels * taps
        elif self.direction == "backward_data":
            m, n, k = rows_in, channels, filters * (taps / self.stride_volume)
        else:
            m, n, k = filters, channels * taps, rows_out
        return MatrixProduct(batch=np.asarray(batch, dtype=np.float64), m=m, n=n, k=k)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations, a multiply-add counting as two; 0 for memory-bound kinds."""
        if self.operation == "attention":
            # backward: scores again, then the gradients of scores, values, queries and keys
            widths = (1.0, 1.0) if self.direction == "forward" else (3.0, 2.0)
            features = widths[0] * self.channels + widths[1] * self.filters
            pairs = _extent_product(self.in_extents) * _extent_product(self.out_extents)
            return 2.0 * self.samples * pairs * self.visible * features
        if not self.is_dense:
            return np.zeros_like(self.inputs + self.outputs)
        product = self.matrix_product()
        return 2.0 * product.batch * product.m * product.n * product.k

    def bytes_moved(self, precision: str) -> FloatArray:
        """Bytes that the pass must at least read and write. [B]

        Parameters
        ----------
        precision
            Key of `ELEMENT_SIZE`.
        """
        size = ELEMENT_SIZE[precision]
        if self.operation == "attention":
            # queries and output, keys and values; backward moves as much for the gradients again
            rows = (
                _extent_product(self.out_extents) + _extent_product(self.in_extents) / self.groups
            )
            times = 1.0 if self.direction == "forward" else 2.0
            return times * size * self.samples * rows * (self.channels + self.filters)
        if self.is_dense:
            return size * (self.inputs + self.outputs + self.weights)
        reads, writes, extra = TRAFFIC[(self.operation, self.direction)]
        return size * (reads * self.inputs + writes * self.outputs) + extra * self.outputs


def _as_extent(name: str, value: ArrayLike) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1:
        raise InputError(
            f"{name} of a work must have at most one dim, that of the candidates, but has "
            f"{array.ndim}; flatten it"
        )
    if not (array.item() >= 0 if array.size == 1 else array.min(initial=0.0) >= 0):
        raise InputError.rule(
            f"{name} of a work", "be at least 0", array.min(), "give the local extents"
        )
    return array
