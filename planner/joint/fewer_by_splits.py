"""Smaller numbers of GPUs that may be faster by splits of layers, of which nothing is estimated."""

from __future__ import annotations

from msgspec import Struct

from planner.joint.hosts import on_gpus
from planner.joint.work import least_work
from planner.planning.decision.fewer import fewer_devices
from planner.request.setting import Setting


class FewerBySplits(Struct, frozen=True, kw_only=True):
    """What makes splits on fewer GPUs worth asking for.

    Parameters
    ----------
    unfinished
        Whether splits of layers were not searched to the end.
    needed
        Whether layers were split each in its own way for them to fit.
    repeated
        Whether GPUs compute what others do then: half of them may do it with other splits.
    uneven
        Whether layers of a transformer may be split in their own ways, whose samples are not shared
        out evenly.
    """

    unfinished: bool = False
    needed: bool = False
    repeated: bool = False
    uneven: bool = False

    def parts(self, setting: Setting, seconds: float) -> dict[int, Setting]:
        """The question for smaller numbers, by these.

        With fewer samples than GPUs these are split otherwise, which costs more than work. Inside
        of a host they are split faster than across hosts, where that matters for them to fit. What
        heads and weights divide among are mostly powers of two: where samples do not divide among
        all GPUs, a power of two may be faster.

        Parameters
        ----------
        setting, seconds
            The question for all GPUs, and its step. [s]
        """
        found: dict[int, Setting] = {}
        part = fewer_devices(setting) if self.unfinished else None
        while part is not None and 2 * part.gpus > part.batch:
            found[part.gpus] = on_gpus(setting, part.gpus)
            part = fewer_devices(part)
        half = fewer_devices(setting) if self.needed and self.repeated else None
        others = [half.gpus] if half is not None else []
        host, power = setting.cluster.devices_per_host, 1 << (setting.gpus.bit_length() - 1)
        both = ((host, self.needed), (power, self.uneven))
        if wanted := [gpus for gpus, is_wanted in both if is_wanted and gpus < setting.gpus]:
            work = least_work(setting) * setting.gpus
            others += [gpus for gpus in wanted if work / gpus < seconds]
        usable = filter(setting.cluster.can_use, others)
        return found | {gpus: on_gpus(setting, gpus) for gpus in usable}


NO_FEWER_BY_SPLITS = FewerBySplits()
