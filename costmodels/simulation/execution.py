"""The distributed execution graph: what every role does, in which queue, and after what.

A *role* stands for all devices that do the same at the same time, such as those of one pipeline
stage: it is simulated once, however many devices it has. Each role has queues, which run their
tasks in the order given, one at a time, and beside each other: computation, feature communication
(which computation waits for), gradient communication, and communication of parameters (Proteus,
VI.B, has the first three; the fourth keeps all-gathers of weights from waiting for gradients);
copies to the memory of the host, copies back, which engines of their own do, and computation on the
host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct, field

from costmodels.simulation.parts import Breakdown


class Queue(IntEnum):
    """Queue of a role that a task runs in."""

    COMPUTE = 0
    FEATURE = 1
    GRADIENT = 2
    PARAMETER = 3
    TO_HOST = 4
    FROM_HOST = 5
    HOST = 6


# Communication that computation does not wait for by itself, so that the two slow each other down.
ASYNCHRONOUS = (Queue.GRADIENT, Queue.PARAMETER)
HOST_QUEUES = (Queue.TO_HOST, Queue.FROM_HOST, Queue.HOST)

# One direction of the links of one child of a level: (level, child, 0 out or 1 in).
Link = tuple[int, int, int]
# A tensor of a role in memory: micro-batch, what it is, whose it is, and which of them.
TensorKey = tuple[int, str, str, int]


class Inside(NamedTuple):
    """What happens inside of a task that stands for a whole pass.

    Parameters
    ----------
    compute, feature, exposed
        Time that each queue works, and in which communication is waited for. [s]
    moment, offset
        When it holds the most, in words and since its start. [s]
    held
        The tensors of its micro-batch then: key, holder, size. [B]
    left
        Those that it leaves to later passes. [B]
    parts
        What its time is made of, alone.
    """

    compute: float
    feature: float
    exposed: float
    moment: str
    offset: float
    held: tuple[tuple[TensorKey, str, float], ...]
    left: tuple[tuple[TensorKey, str, float], ...]
    parts: Breakdown


class Task(NamedTuple):
    """One operation of one role.

    Parameters
    ----------
    name
        The layer, or what is communicated.
    kind
        "forward", "backward", "all_reduce", ...
    role, queue
        Where it runs.
    step, stage, micro
        The step, stage and micro-batch it belongs to; -1 where it belongs to none.
    seconds
        Time of computation, or what a message takes before its bytes flow. [s]
    transfer
        Time that its bytes flow when the links are all its own. [s]
    loads
        Part of each link that it fills meanwhile.
    after
        Tasks that must have ended.
    num_bytes
        Bytes that a device receives; for fused gradients the buffer. [B]
    group
        Which fused collective the buffer may travel with; -1 for none.
    makes
        Tensors that come to be when it starts: key, holder, size. [B]
    takes, uses
        Tensors read for the last time by it, whose memory goes when it starts, or ends, if no
        other task is still to read them.
    scratch, buffer
        Memory of its own while it runs: workspace, communication buffers. [B]
    inside
        What happens inside, where it stands for a whole pass.
    """

    name: str
    kind: str
    role: int
    queue: int
    step: int = 0
    stage: int = -1
    micro: int = -1
    seconds: float = 0.0
    transfer: float = 0.0
    loads: tuple[tuple[Link, float], ...] = ()
    after: tuple[int, ...] = ()
    num_bytes: float = 0.0
    group: int = -1
    makes: tuple[tuple[TensorKey, str, float], ...] = ()
    takes: tuple[TensorKey, ...] = ()
    uses: tuple[TensorKey, ...] = ()
    scratch: float = 0.0
    buffer: float = 0.0
    inside: Inside | None = None


class Role(Struct, frozen=True, kw_only=True):
    """Devices that do the same.

    Parameters
    ----------
    name
        Such as "stage 0".
    first_device, num_devices
        Its devices. [items]
    capacity
        Memory of each of them. [B]
    fixed_memory
        What it holds throughout, by holder. [B]
    reserved
        What an allocator takes for all else, the pieces between tensors included; None where no
        allocator counts. [B]
    lasting
        The same, were it not to give anything back in every step; None where no allocator counts.
        [B]
    host_memory
        What waits for each of its devices in the memory of their host, at most. [B]
    """

    name: str
    first_device: int
    num_devices: int
    capacity: float = math.inf
    fixed_memory: Mapping[str, float] = field(default_factory=dict)
    reserved: float | None = None
    lasting: float | None = None
    host_memory: float = 0.0


class Fusion(Struct, frozen=True, kw_only=True):
    """How ready gradients are put together while the step runs (Horovod's tensor fusion).

    Parameters
    ----------
    cycle
        A background thread looks for ready gradients once in that time. [s]
    negotiation
        Time in which the ranks agree on what is ready everywhere, before each reduction. [s]
    limit
        Size of the fusion buffer. [B]
    cost
        Of a group and its bytes: what a reduction takes before and while its bytes flow. [s]
    received
        Of a group: what a device receives for each byte of its buffer. [B]
    """

    cycle: float
    negotiation: float
    limit: float
    cost: Callable[[int, float], tuple[float, float]]
    received: Callable[[int], float]


class ExecutionGraph(Struct, frozen=True, kw_only=True):
    """All tasks of one or more steps.

    Parameters
    ----------
    roles
        The roles.
    tasks
        The tasks; those of one queue run in this order.
    steps
        Steps that the tasks make up, one after the other. [items]
    fusion
        How gradients are fused, None where buckets are made beforehand.
    """

    roles: tuple[Role, ...]
    tasks: tuple[Task, ...]
    steps: int = 1
    fusion: Fusion | None = None

    def critical_path(self) -> float:
        """The longest chain of dependencies, with every task at full speed. [s]

        No execution is faster than that. Fused gradients count as nothing.
        """
        ends = [0.0] * len(self.tasks)
        waiting = [len(task.after) for task in self.tasks]
        dependents: list[list[int]] = [[] for _ in self.tasks]
        for number, task in enumerate(self.tasks):
            for before in task.after:
                dependents[before].append(number)
        ready = [number for number, count in enumerate(waiting) if not count]
        while ready:
            number = ready.pop()
            task = self.tasks[number]
            if not (self.fusion and task.group >= 0):
                ends[number] += task.seconds + task.transfer
            for after in dependents[number]:
                ends[after] = max(ends[after], ends[number])
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return max(ends, default=0.0)
