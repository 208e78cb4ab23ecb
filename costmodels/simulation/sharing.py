"""Fair sharing of links by the messages that use them at the same time (Proteus, VI.C).

Messages fill links in parts. Where they fill more than there is, all of them are slowed down alike
until the fullest link is just full; those on it keep that pace, and the others go on being sped up
until their own fullest link is full (max-min fairness). Levels of links are separate links, so
that a message that leaves a host is shared on the way out, then inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costmodels.simulation.execution import Link

Loads = tuple[tuple[Link, float], ...]
# Loads are quotients: their sums may exceed one by rounding.
_FULL = 1.0 + 1e-9


class Sharing:
    """Messages under way, and the pace of each."""

    def __init__(self) -> None:
        self.loads: dict[int, Loads] = {}
        self.on_link: dict[Link, set[int]] = {}
        self.paces: dict[int, float] = {}
        # what messages share that were under way together before, by the identity of their loads
        self.known: dict[tuple[int, ...], tuple[float, ...]] = {}
        self.kept: dict[int, Loads] = {}  # so that no identity is given to others

    def add(self, message: int, loads: Loads) -> Mapping[int, float]:
        """A message starts to flow; return those whose pace is new, the message's own included."""
        self.loads[message] = self.kept.setdefault(id(loads), loads)
        crowded = False
        for link, _ in loads:
            others = self.on_link.setdefault(link, set())
            crowded = crowded or bool(others)
            others.add(message)
        if not crowded:
            self.paces[message] = 1.0
            return {message: 1.0}
        return self._change(self._joined((message,)))

    def remove(self, message: int) -> Mapping[int, float]:
        """A message has ended; return those whose pace is new."""
        neighbours: set[int] = set()
        for link, _ in self.loads.pop(message):
            others = self.on_link[link]
            others.discard(message)
            neighbours |= others
        del self.paces[message]
        if all(self.paces[n] == 1.0 for n in neighbours):
            return {}
        return self._change(self._joined(neighbours))

    def _joined(self, seeds: Iterable[int]) -> list[int]:
        """All messages that share links with these, or with those that do, and so on."""
        found, rest = set(seeds), list(seeds)
        while rest:
            for link, _ in self.loads[rest.pop()]:
                for other in self.on_link[link]:
                    if other not in found:
                        found.add(other)
                        rest.append(other)
        return sorted(found)

    def _change(self, messages: list[int]) -> dict[int, float]:
        changed = {}
        loads = [self.loads[message] for message in messages]
        key = tuple(map(id, loads))
        if key not in self.known:
            paces = fair_paces(dict(enumerate(loads)))
            self.known[key] = tuple(paces[place] for place in range(len(loads)))
        for message, pace in zip(messages, self.known[key], strict=True):
            if self.paces.get(message) != pace:
                self.paces[message] = pace
                changed[message] = pace
        return changed


def fair_paces(loads: Mapping[int, Loads]) -> dict[int, float]:
    """Pace of each message between 0 and 1: max-min fair, no link more than full."""
    paces: dict[int, float] = {}
    room: dict[Link, float] = {}
    wanted: dict[Link, float] = {}
    for message_loads in loads.values():
        for link, part in message_loads:
            room[link] = 1.0
            wanted[link] = wanted.get(link, 0.0) + part
    moving = dict(loads)
    while moving:
        tight, pace = None, 1.0
        for link, part in wanted.items():
            if part > room[link] * _FULL and room[link] / part < pace:
                tight, pace = link, room[link] / part
        if tight is None:
            paces.update(dict.fromkeys(moving, 1.0))
            break
        stopped = [m for m, parts in moving.items() if any(k == tight for k, _ in parts)]
        for message in stopped:
            paces[message] = pace
            for link, part in moving.pop(message):
                room[link] = max(room[link] - pace * part, 0.0)
                wanted[link] -= part
        wanted[tight] = 0.0
    return paces
