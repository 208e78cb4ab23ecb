"""Shapes of convolutions and pools that can be: what padding and dilation a table leaves unsaid.

An output of a pool is at most what padding by half the kernel at both ends gives, the most that
PyTorch takes. A convolution takes any padding and dilation, but no input is read by more outputs
than the kernel has taps, so that all beyond are of padding alone; three at least are let pass, for
small kernels that are padded needlessly.
"""

from __future__ import annotations

from costmodels.compute.work import Work
from costmodels.errors import InputError


def check_windows(file: str, place: str, work: Work) -> None:
    """Refuse a convolution or pool of a shape that no library runs.

    Parameters
    ----------
    file, place
        Where the row stands, for messages.
    work
        One local shape.

    Raises
    ------
    InputError
        When its extents do not fit its kernel, or its groups not its channels.
    """
    if work.operation not in ("conv", "pool"):
        return
    ins, outs = (tuple(map(int, ends)) for ends in (work.in_extents, work.out_extents))
    advice = "correct or remove the row"
    if not len(ins) == len(outs) == len(work.kernel):
        raise InputError.rule(
            f"{place} of {file}",
            "have as many dims in in_extents and out_extents as in kernel",
            f"of {len(ins)}, {len(outs)} and {len(work.kernel)}",
            advice,
        )
    rows = zip(ins, work.kernel, work.stride, strict=True)
    most = [_most_outputs(work.operation, *row) for row in rows]
    if any(out > limit for out, limit in zip(outs, most, strict=True)):
        window = f"{_by(work.kernel)} with stride {_by(work.stride)} on {_by(ins)}"
        raise InputError.rule(
            f"{place}, column out_extents of {file}",
            f"be at most {_by(most)}, the most that a {work.operation} of {window} gives,",
            _by(outs),
            advice,
        )
    if work.channels % work.groups or work.filters % work.groups:
        raise InputError.rule(
            f"{place}, column groups of {file}",
            f"divide channels and filters, {work.channels:g} and {work.filters:g},",
            f"{work.groups:g}",
            advice,
        )


def _most_outputs(operation: str, extent: int, kernel: int, stride: int) -> int:
    """Most outputs of one dim.

    Parameters
    ----------
    operation, extent, kernel, stride
        "conv" or "pool", the extent of the input, and the window.
    """
    if operation == "conv":
        return max(kernel, 3) * -(-extent // stride)
    # rounded up, as PyTorch does if told to
    return max(1, -(-(extent + 2 * (kernel // 2) - kernel) // stride) + 1)


def _by(numbers: list[int] | tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))
