"""Which cuts of a pipeline come into question: balanced work, or work and exchanges of gradients.

A stage is not through before its gradients are exchanged. Over slow networks that of embeddings
takes as long as many blocks do.
"""

from __future__ import annotations

from planner.joint.choices import Choice
from planner.joint.cuts import Cuts
from planner.joint.exchanges import Exchanges
from planner.joint.micro_batch import MicroBatch

# Exchanges of gradients count where they take more of what passes do. By judgement: one more cut of
# every pipeline takes time to estimate. [parts]
WORTH_EXCHANGING = 0.05


def ways_to_cut(
    cuts: Cuts, exchanges: Exchanges, choice: Choice, inside: MicroBatch
) -> list[tuple[int, ...]]:
    """Blocks of each stage that come into question, as of `Cuts.ways`.

    Parameters
    ----------
    cuts, exchanges
        Of the question.
    choice, inside
        The choice, and what a micro-batch of it costs.
    """
    work = inside.forward + inside.backward
    ways = cuts.ways(choice.parts, work, choice.chunks)
    gradients = exchanges.gradients(choice.zero)
    if choice.pp == 1 or gradients.each_micro_batch or not cuts.are_many(choice):
        return ways
    exchanged = exchanges.of_layers(choice, inside) / choice.micro_batches
    if exchanged.sum() > WORTH_EXCHANGING * work.sum():
        ways = [*ways, cuts.balanced(choice.parts, work + exchanged)]
    return list(dict.fromkeys(ways))
