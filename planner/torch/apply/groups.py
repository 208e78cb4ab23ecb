"""Groups of ranks, none of which outlives `torch.distributed.destroy_process_group`.

The threads of a gloo group let go of what they worked on a moment after its result is there, and
need Python for that. One that does so while Python ends aborts the process. A group waits for its
threads when nothing refers to it any more: therefore nothing of a plan does, but PyTorch itself,
until the groups are destroyed.
"""

from __future__ import annotations

import importlib
import weakref
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from costmodels.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

# Its functions have the group of all ranks as a default, of the time at which it is imported.
_HAS_DEFAULTS = "torch.distributed.nn.functional"


class RankGroup:
    """A group of ranks, as long as PyTorch has it.

    Parameters
    ----------
    group
        The group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._found = weakref.ref(group)

    @property
    def now(self) -> dist.ProcessGroup:
        """The group itself, to be used at once and not to be kept."""
        found = self._found()
        if found is None:
            raise InputError(
                "a plan that was applied must run before destroy_process_group is called but runs "
                "after it; apply it again after init_process_group"
            )
        return found


def new_rank_group(ranks: Sequence[int]) -> RankGroup | None:
    """A new group of some ranks, None on the others; all ranks call it alike."""
    group = dist.new_group(list(ranks))
    return None if group is dist.GroupMember.NON_GROUP_MEMBER else RankGroup(group)


def new_mesh(device: str, shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
    """A mesh of all ranks, which finds its groups by their names.

    Parameters
    ----------
    device, shape, names
        As of `init_device_mesh`.
    """
    mesh = init_device_mesh(device, tuple(shape), mesh_dim_names=tuple(names))
    # what it keeps of its groups beside their names is for torch.compile alone
    getattr(mesh, "_pg_registry", {}).clear()
    return mesh


def import_without_group() -> None:
    """Import what tracing needs as if it were before `init_process_group`."""
    whole = dist.group.WORLD
    dist.group.WORLD = None
    try:
        importlib.import_module(_HAS_DEFAULTS)
    finally:
        dist.group.WORLD = whole
