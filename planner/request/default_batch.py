"""The global batch of a question that names none."""

from __future__ import annotations

from costmodels.cluster import Cluster, Device
from costmodels.graph import Network, build_graph
from costmodels.step.memory import keeps_tensor

DEFAULT_BATCH_PER_GPU = 32


def has_attention(network: Network) -> bool:
    """Whether attention and products make up most of a network."""
    return any(layer.kind == "attention" for layer in network.layers)


def default_batch(model: Network, cluster: Cluster, gpus: int, activation_size: int) -> int:
    """32 samples a GPU, halved until the activations of data parallelism take half the memory.

    Transformers are trained with one sequence a GPU at least: of a batch that is smaller than the
    machine most GPUs would share single sequences, which nobody who chose the machine wants.

    Parameters
    ----------
    model, cluster
        The network, and the machine.
    gpus
        Number of GPUs. [items]
    activation_size
        Of an element of an activation. [B]
    """
    kept = kept_of_sample(model, activation_size)
    batch = DEFAULT_BATCH_PER_GPU * gpus
    least = gpus if has_attention(model) else 1
    while batch > least and batch / gpus * kept > 0.5 * cluster.device.usable_memory:
        batch //= 2
    return max(batch, least)


def kept_of_sample(model: Network, activation_size: int) -> float:
    """Activations of one sample that wait for the backward pass. [B]

    Parameters
    ----------
    model
        The network.
    activation_size
        Of an element of an activation. [B]
    """
    graph = build_graph(model, 1)
    return sum(
        layer.output.size * keeps_tensor(graph, layer.name) * activation_size + layer.saved_bytes
        for layer in graph.layers.values()
    )


def most_at_once(samples: int, kept: float, device: Device) -> int:
    """The largest divisor of samples whose activations take half the memory at most, at least 1.

    Parameters
    ----------
    samples
        Those of a replica. [samples]
    kept
        Activations of a sample on a device. [B]
    device
        The device.
    """
    most = int(min(0.5 * device.usable_memory / kept, samples))
    return next((n for n in range(most, 1, -1) if samples % n == 0), 1)
