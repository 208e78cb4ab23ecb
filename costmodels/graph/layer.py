"""A layer as an iteration space, from which every parallel strategy follows by rule.

A layer iterates over named *dims* (sample, channel, filter, height, ...). Each tensor it touches
(inputs, weight, output) has *axes*, and each axis is indexed by one dim of the layer or by none.
Splitting a dim then says everything:

* a dim that the output does not have is reduced over: its split leaves partial sums;
* a dim that an input does not have replicates that input (and leaves partial input gradients);
* a dim that the weight does not have replicates the weight (and its gradient is all-reduced);
* a dim with a window wider than one position needs a halo.

Assumes dense tensors and blocked (contiguous) division of every dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy

from msgspec import Struct, field, structs

from costmodels.errors import InputError

SPATIAL_DIMS = ("depth", "height", "width")
# Canonical order: the most significant digit of a rank within a level comes first, so that going
# from a split of few dims to one of more keeps as much data as possible where it already lies.
DIMS = (
    *("sample", "sequence", "expert", "table", "head", "filter", "channel"),
    *("depth", "height", "width"),
)
# Operations of the compute models that are products of matrices.
_DENSE_OPERATIONS = frozenset({"conv", "linear", "matmul"})
# Longer dims than any network has, and short enough that no product of counts overflows.
MAX_EXTENT = 2**40
# So that the bytes of all tensors of a network are counted in 64 bits.
MAX_ELEMENTS = 2**48


class Axis(Struct, frozen=True, kw_only=True):
    """One axis of a tensor.

    Parameters
    ----------
    name
        Axis name; producer and consumer of a tensor use the same names.
    extent
        Number of positions. [items]
    dim
        The dim of the layer that indexes this axis, or None when the layer needs the whole axis.
    units
        Equal parts that no split of the dim divides, such as heads of keys that several heads of
        queries share: a split into more ways than there are units repeats them. None where every
        position may lie elsewhere. [items]
    """

    name: str
    extent: int
    dim: str | None
    units: int | None = None


class Tensor(Struct, frozen=True, kw_only=True):
    """The axes of an activation as one layer sees it."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of elements. [items]"""
        return math.prod(axis.extent for axis in self.axes)

    @property
    def dims(self) -> frozenset[str]:
        """The dims of the layer that index this tensor."""
        return frozenset(axis.dim for axis in self.axes if axis.dim is not None)

    def extent(self, name: str) -> int:
        """Extent of the axis called `name`, 1 when there is none. [items]"""
        return next((axis.extent for axis in self.axes if axis.name == name), 1)


class Window(Struct, frozen=True, kw_only=True):
    """The stencil of one spatial dim: output o reads inputs o*stride - padding + k*dilation."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Number of input positions from the first to the last one read. [items]"""
        return (self.kernel - 1) * self.dilation + 1


class Statistics(Struct, frozen=True, kw_only=True):
    """Numbers that must be summed over the ranks that split some dims before a layer can go on.

    Batch norm with synchronised statistics sums over sample and space for each channel; layer
    norm and the softmax loss sum over hidden or class for each position.

    Parameters
    ----------
    over
        Dims summed over: a split of one of them makes the all-reduce necessary.
    per
        Dims the numbers are kept for.
    count
        Numbers for each position of `per`. [items]
    """

    over: tuple[str, ...]
    per: tuple[str, ...]
    count: int


class Product(Struct, frozen=True, kw_only=True):
    """Products of matrices of activations, one for each position of some dims.

    Parameters
    ----------
    batch
        Dims for each position of which there is one product.
    rows
        Rows of its result. [items]
    row_dim
        The dim that divides the rows, if any does.
    columns, contracted
        The other two extents, as far as they are computed: where a mask is known to a kernel, that
        is how many positions a row sees on average. [items]
    macs
        Multiply-adds of one product as publications count them. [items]
    """

    batch: tuple[str, ...]
    rows: int
    row_dim: str | None = None
    columns: float
    contracted: float
    macs: int


class Layer(Struct, frozen=True, kw_only=True):
    """One operation of a network.

    Parameters
    ----------
    name, kind
        Unique name, and what the layer is ("conv", "linear", "batch_norm", ...).
    operation
        What the compute models take its time for: one of `costmodels.compute.work.OPERATIONS`; the
        kind by default.
    dims
        Iteration space: dim name to extent, in output positions for spatial dims. [items]
    inputs, output
        The activations read and written.
    weight_dims
        Dims that index the weight, in the order in which frameworks store it.
    parameters
        Number of trainable numbers, biases included. [items]
    frozen_parameters
        Numbers of its weight and bias that are held and not trained. [items]
    windows
        Stencil of each spatial dim that has one.
    groups
        Number of independent channel groups of a convolution.
    transposed
        Whether the windows spread an input position over outputs, instead of gathering inputs.
    statistics
        What must be summed across ranks within the layer, if anything.
    keeps_inputs, keeps_output
        Whether backward reads them again, so that they stay in memory until then.
    copy_size
        Where backward reads a copy of the inputs in another type instead, which the layer makes:
        bytes of a number of it; 0 for none. [B]
    in_place
        Whether the output may overwrite the input.
    saved_bytes
        Further bytes kept for backward (dropout masks, pooling indices), split as the output. [B]
    saved_elements
        Further activations kept for backward (scores of attention), split as the output. [items]
    products
        What it multiplies, where it multiplies activations by each other.
    between
        Memory-bound operations between its products, on as many elements as the first product has.
    splittable, evenly
        Dims that may be split at all, and whether into equal blocks alone.
    mesh
        Axes of each level of the cluster, from the inside out, each of which goes to one dim as a
        whole; none where dims may have any part of a level. [items]
    shares_weight_with
        Name of the layer whose weight this one uses; its parameters are then counted there.
    stops_gradient
        Whether no gradient goes back through it.
    biased
        Whether a convolution adds a bias, which is an operation of its own.
    """

    name: str
    kind: str
    operation: str = ""
    dims: Mapping[str, int]
    inputs: tuple[Tensor, ...]
    output: Tensor
    weight_dims: tuple[str, ...] = ()
    parameters: int = 0
    frozen_parameters: int = 0
    windows: Mapping[str, Window] = field(default_factory=dict)
    groups: int = 1
    transposed: bool = False
    statistics: Statistics | None = None
    keeps_inputs: bool = False
    keeps_output: bool = False
    copy_size: int = 0
    in_place: bool = False
    saved_bytes: int = 0
    saved_elements: int = 0
    products: tuple[Product, ...] = ()
    between: tuple[str, ...] = ()
    splittable: frozenset[str] = frozenset()
    evenly: bool = False
    mesh: tuple[tuple[int, ...], ...] = ()
    shares_weight_with: str | None = None
    stops_gradient: bool = False
    biased: bool = False

    def __post_init__(self) -> None:
        if not self.operation:
            structs.force_setattr(self, "operation", self.kind)
        for dim, extent in self.dims.items():
            if extent < 1:
                raise InputError(
                    f"layer '{self.name}': dim {dim} must have at least 1 position but has "
                    f"{extent}; check the input size and the kernel, stride and padding before it"
                )
            if extent > MAX_EXTENT:
                raise InputError(
                    f"layer '{self.name}': dim {dim} must have at most {MAX_EXTENT} positions but "
                    f"has {extent}; lower the batch or the input size"
                )

        largest = max(self.held_parameters, *(t.size for t in (self.output, *self.inputs)))
        if largest > MAX_ELEMENTS:
            raise InputError(
                f"layer '{self.name}': its tensors must have at most {MAX_ELEMENTS} elements but "
                f"one has {largest}; lower the batch or the input size"
            )

    def renamed(self, name: str) -> Layer:
        """The same layer by another name, of which nothing else is checked again."""
        found = copy(self)
        structs.force_setattr(found, "name", name)
        return found

    @property
    def reduced_dims(self) -> frozenset[str]:
        """Dims summed over by the forward pass: a split leaves partial outputs."""
        return frozenset(self.dims) - self.output.dims

    def absent_dims(self, slot: int) -> frozenset[str]:
        """Dims that input `slot` lacks: a split replicates it and leaves partial gradients."""
        return frozenset(self.dims) - self.inputs[slot].dims

    @property
    def is_dense(self) -> bool:
        """Whether it multiplies matrices, and so has a backward-weight pass, or one like it."""
        return self.operation in _DENSE_OPERATIONS

    @property
    def multiplies_weight(self) -> bool:
        """Whether it multiplies its input by a weight, whose filters and channels are its dims."""
        return self.operation in ("conv", "linear")

    @property
    def held_parameters(self) -> int:
        """Numbers of its weight and bias, whether they are trained or not. [items]"""
        return self.parameters + self.frozen_parameters

    @property
    def trains_weight(self) -> bool:
        """Whether its weight is trained, and not only a bias beside a frozen one."""
        if not (self.multiplies_weight and self.frozen_parameters):
            return self.parameters > 0
        return self.parameters > self.dims["filter"] * self.dims.get("expert", 1)

    @property
    def multiplies_activations(self) -> bool:
        """Whether it multiplies activations by each other: both backward products are for data."""
        return self.operation == "matmul"

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass; 0 for layers without matrix arithmetic. [items]"""
        if not self.is_dense:
            return 0
        if self.multiplies_activations:
            return sum(
                product.macs * math.prod(self.dims[dim] for dim in product.batch)
                for product in self.products
            )
        kernel = math.prod(window.kernel for window in self.windows.values())
        return math.prod(self.dims.values()) // self.groups * kernel

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for layers that cost the same under every distribution: all but the name."""
        return (
            self.kind,
            self.operation,
            tuple(self.dims.items()),
            self.inputs,
            self.output,
            self.weight_dims,
            self.parameters,
            self.frozen_parameters,
            tuple(self.windows.items()),
            self.groups,
            self.transposed,
            self.statistics,
            self.keeps_inputs,
            self.keeps_output,
            self.copy_size,
            self.in_place,
            self.saved_bytes,
            self.saved_elements,
            self.products,
            self.between,
            self.splittable,
            self.evenly,
            self.mesh,
            self.shares_weight_with is None,
            self.biased,
        )
