"""What a step, or a part of it, is made of."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

COMPUTATION = ("compute", "update", "slowdown")
COMMUNICATION = ("halo", "reduction", "shuffle", "parameter", "gradient", "host")
# What a step is made of; they sum to it.
CAUSES = (*COMPUTATION, *COMMUNICATION, "idle")


class Breakdown(Struct, frozen=True, kw_only=True):
    """A step of a role by cause.

    Parameters
    ----------
    causes
        The step by `CAUSES`, of communication what is exposed. [s]
    hidden
        Communication that nothing waits for, by `COMMUNICATION`. [s]
    layers
        By layer what of it is the layer's: "forward" and "backward" computation when nothing slows
        it down, and exposed "halo", "reduction" and "shuffle". [s]
    """

    causes: Mapping[str, float]
    hidden: Mapping[str, float]
    layers: Mapping[str, Mapping[str, float]]

    def beyond(self, less: Breakdown, times: float) -> Breakdown:
        """That of a step with so many times more of what this one has more than a shorter one.

        Parameters
        ----------
        less, times
            As of `beyond`.
        """
        layers = self.layers.keys() | less.layers.keys()
        return Breakdown(
            causes=beyond(less.causes, self.causes, times),
            hidden=beyond(less.hidden, self.hidden, times),
            layers={
                name: beyond(less.layers.get(name, {}), self.layers.get(name, {}), times)
                for name in sorted(layers)
            },
        )


def beyond(less: Mapping[str, float], more: Mapping[str, float], times: float) -> dict[str, float]:
    """Amounts of what goes on as two steps tell that are parts of it.

    Parameters
    ----------
    less, more
        Those of the shorter step, and of the longer one.
    times
        How many times more there is of what the longer one has more than the shorter one.
    """
    names = dict.fromkeys([*more, *less])
    first, second = ({name: row.get(name, 0.0) for name in names} for row in (less, more))
    return {name: second[name] + times * (second[name] - first[name]) for name in names}
