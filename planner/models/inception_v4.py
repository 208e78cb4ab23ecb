"""Inception v4: a deeper stem and more modules than Inception v3, without auxiliary classifiers."""

from __future__ import annotations

from costmodels.graph import Network
from planner.models.builder import classifier, conv_bn, image_builder
from planner.models.inception import Branch, BranchStep, inception_module

SOURCE = (
    'Szegedy et al. 2017, "Inception-v4, Inception-ResNet and the Impact of Residual Connections '
    'on Learning", as implemented in timm'
)
_MAX = BranchStep("pool", kernel=3, stride=2, pool="max")
_AVERAGE = BranchStep("pool", kernel=3, pool="average")


def _convs(*rows: tuple[int, int | tuple[int, int]], valid: bool = False) -> Branch:
    """Convolutions one after the other, each (filters, kernel); the last may be unpadded."""
    steps = [BranchStep(f"{i}", filters, kernel) for i, (filters, kernel) in enumerate(rows)]
    if valid:
        filters, kernel = rows[-1]
        steps[-1] = BranchStep(f"{len(rows) - 1}", filters, kernel, padding=0)
    return tuple(steps)


def _labelled(name: str, branch: Branch) -> Branch:
    """A branch whose steps have names of their own within a module."""
    found: list[BranchStep | list[BranchStep]] = []
    for step in branch:
        steps = step if isinstance(step, list) else [step]
        renamed = [
            BranchStep(f"{name}.{s.label}", s.filters, s.kernel, s.stride, s.padding, s.pool)
            for s in steps
        ]
        found.append(renamed if isinstance(step, list) else renamed[0])
    return tuple(found)


def _strided(*rows: tuple[int, int | tuple[int, int]]) -> Branch:
    """Convolutions of which the last halves the extents, without padding."""
    *before, (filters, kernel) = rows
    return (*_convs(*before), BranchStep(f"{len(before)}", filters, kernel, stride=2))


_STEM = (
    (((_MAX,)), _strided((96, 3))),
    (
        _convs((64, 1), (96, 3), valid=True),
        _convs((64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3), valid=True),
    ),
    (_strided((192, 3)), (_MAX,)),
)
_A = (
    _convs((96, 1)),
    _convs((64, 1), (96, 3)),
    _convs((64, 1), (96, 3), (96, 3)),
    (_AVERAGE, BranchStep("1", 96)),
)
_B = (
    _convs((384, 1)),
    _convs((192, 1), (224, (1, 7)), (256, (7, 1))),
    _convs((192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
    (_AVERAGE, BranchStep("1", 128)),
)
_FORK: list[BranchStep] = [BranchStep("a", 256, (1, 3)), BranchStep("b", 256, (3, 1))]
_C = (
    _convs((256, 1)),
    (BranchStep("0", 384), _FORK),
    (*_convs((384, 1), (448, (3, 1)), (512, (1, 3))), _FORK),
    (_AVERAGE, BranchStep("1", 256)),
)
_REDUCTION_A = (_strided((384, 3)), _strided((192, 1), (224, 3), (256, 3)), (_MAX,))
_REDUCTION_B = (
    _strided((192, 1), (192, 3)),
    _strided((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3)),
    (_MAX,),
)
_MODULES: tuple[tuple[Branch, ...], ...] = (
    *_STEM,
    *([_A] * 4),
    _REDUCTION_A,
    *([_B] * 7),
    _REDUCTION_B,
    *([_C] * 3),
)


def inception_v4(size: int) -> Network:
    net = image_builder(size)
    for place, (filters, stride, padding) in enumerate(((32, 2, 0), (32, 1, 0), (64, 1, 1))):
        conv_bn(net, f"features.{place}", filters=filters, stride=stride, padding=padding)
    for place, branches in enumerate(_MODULES, start=3):
        named = (_labelled(f"branch{i}", branch) for i, branch in enumerate(branches))
        inception_module(net, f"features.{place}", *named)
    classifier(net)
    return net.network("inception_v4", source=SOURCE)
