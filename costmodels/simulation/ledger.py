"""Memory of a role while a step runs: every tensor lives from its first to its last use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from costmodels.simulation.execution import Role, Task, TensorKey
from costmodels.step.memory import HOLDERS, PeakMemory

# Keys of tensors count micro-batches on from that number in each further step.
STEP_TAG = 1_000_000


class HeldTensor(Struct, frozen=True, kw_only=True):
    """A tensor that is in memory when most is.

    Parameters
    ----------
    name, micro
        Whose it is, and of which micro-batch.
    holder
        What it counts as, see `costmodels.step.memory.HOLDERS`.
    size
        Its size. [B]
    """

    name: str
    micro: int
    holder: str
    size: float


def _own(number: int, task: Task) -> list[tuple[TensorKey, str, float]]:
    """Memory that only one task has, while it runs: key, holder, size. [B]"""
    rows = (("workspace", task.scratch), ("communication buffers", task.buffer))
    return [
        ((task.micro, holder, task.name, number), holder, size) for holder, size in rows if size
    ]


class Ledger:
    """Reference counts of the tensors of all roles, and the most that each role ever held."""

    def __init__(self, roles: Sequence[Role], tasks: Sequence[Task]) -> None:
        read: list[list[TensorKey]] = [[] for _ in roles]
        for task in tasks:
            read[task.role] += task.takes
            read[task.role] += task.uses
        self.readers = [Counter(keys) for keys in read]
        self.roles = tuple(roles)
        self.live: list[dict[TensorKey, tuple[str, float]]] = [{} for _ in roles]
        self.now = [{**dict.fromkeys(HOLDERS, 0.0), **role.fixed_memory} for role in roles]
        self.total = [sum(now.values()) for now in self.now]
        self.running: list[dict[int, Task]] = [{} for _ in roles]
        self.peak_total = list(self.total)
        self.peak = [dict(now) for now in self.now]
        self.moment = ["start" for _ in roles]
        self.time = [0.0 for _ in roles]
        self.held: list[tuple[HeldTensor, ...]] = [() for _ in roles]
        # what was made and freed (size 0), when: tells afterwards what the peak was made of
        self.log: list[list[tuple[float, TensorKey, str, float]]] = [[] for _ in roles]
        self.peak_at = [0 for _ in roles]
        self.peak_task: list[Task | None] = [None for _ in roles]
        # what whole passes leave, by the keys of what stands for it
        self.left: dict[tuple[str, str, int], tuple[tuple[TensorKey, str, float], ...]] = {}
        for task in tasks:
            left = task.inside.left if task.inside is not None else ()
            for key, holder, _ in task.makes if left else ():
                if key[1].startswith("left") and key[1:] not in self.left:
                    self.left[key[1:]] = tuple(row for row in left if row[1] == holder)

    def start(self, number: int, task: Task, time: float) -> None:
        """A task starts: what it takes goes, what it makes comes.

        Parameters
        ----------
        number, task
            The task, and its number.
        time
            When. [s]
        """
        role = task.role
        if task.takes:
            self._read(role, task.takes, time)
        if task.makes:
            self._make(role, task.makes, time)
        running, extra = self.running[role], 0.0
        if task.scratch or task.buffer:
            running[number] = task
            self.log[role] += [(time, key, h, size) for key, h, size in _own(number, task)]
        for other in running.values():
            extra += other.scratch + other.buffer
        if self.total[role] + extra > self.peak_total[role]:
            self._note(role, task, time, extra)

    def end(self, number: int, task: Task, time: float) -> None:
        """A task has ended: what nobody is still to read goes.

        Parameters
        ----------
        number, task
            The task, and its number.
        time
            When. [s]
        """
        if self.running[task.role].pop(number, None) is not None:
            self.log[task.role] += [(time, key, h, 0.0) for key, h, _ in _own(number, task)]
        if task.uses:
            self._read(task.role, task.uses, time)

    def _make(self, role: int, makes: Sequence[tuple[TensorKey, str, float]], time: float) -> None:
        """Tensors come to be, but for those that are there."""
        live, now, log = self.live[role], self.now[role], self.log[role]
        for key, holder, size in makes:
            if size and key not in live:
                live[key] = (holder, size)
                now[holder] += size
                self.total[role] += size
                log.append((time, key, holder, size))

    def _read(self, role: int, keys: Sequence[TensorKey], time: float) -> None:
        """Tensors are read; what nobody is still to read goes."""
        left, live = self.readers[role], self.live[role]
        for key in keys:
            readers = left[key] - 1
            left[key] = readers
            if readers <= 0 and key in live:
                holder, size = live.pop(key)
                self.now[role][holder] -= size
                self.total[role] -= size
                self.log[role].append((time, key, holder, 0.0))

    def _note(self, role: int, task: Task, time: float, extra: float) -> None:
        self.peak_total[role] = self.total[role] + extra
        self.peak[role] = dict(self.now[role])
        for other in self.running[role].values():
            self.peak[role]["workspace"] += other.scratch
            self.peak[role]["communication buffers"] += other.buffer
        which = f" of micro-batch {task.micro}" if task.micro > 0 else ""
        inside = task.inside
        what = f"{task.kind} of {task.name}" if inside is None else inside.moment
        self.moment[role] = f"{what}{which}"
        self.time[role] = time if inside is None else time + inside.offset
        self.peak_at[role] = len(self.log[role])
        self.peak_task[role] = task

    def peak_memory(self, role: int) -> PeakMemory:
        """The most that a role held, what held it, and when."""
        total, holders = self.peak_total[role], dict(self.peak[role])
        reserved = self.roles[role].reserved
        if reserved is not None:
            pieces = reserved + sum(self.roles[role].fixed_memory.values())
            holders["fragmentation"] = max(pieces - total, 0.0)
            total = max(pieces, total)
        return PeakMemory(total=total, holders=holders, moment=self.moment[role])

    def largest(self, role: int, count: int) -> tuple[HeldTensor, ...]:
        """The largest tensors in memory at the peak of a role."""
        live: dict[TensorKey, tuple[str, float]] = {}
        for _, key, holder, size in self.log[role][: self.peak_at[role]]:
            if size:
                live[key] = (holder, size)
            else:
                del live[key]
        self._open_passes(live, self.peak_task[role])
        ranked = sorted(live.items(), key=lambda item: (-item[1][1], item[0]))[:count]
        return tuple(
            HeldTensor(name=key[2], micro=key[0] % STEP_TAG, holder=holder, size=size)
            for key, (holder, size) in ranked
        )

    def _open_passes(self, live: dict[TensorKey, tuple[str, float]], running: Task | None) -> None:
        """Put what passes leave, and hold while they run, in the place of what stands for it."""
        own: set[TensorKey] = set()
        if running is not None and running.inside is not None:
            own = {key for key, _, _ in running.makes} | set(running.uses)
            live |= {
                (running.micro, *key[1:]): (holder, size)
                for key, holder, size in running.inside.held
            }
        for key in [key for key in live if key in own or key[1:] in self.left]:
            del live[key]
            for inner, holder, size in () if key in own else self.left[key[1:]]:
                live[key[0], *inner[1:]] = (holder, size)
