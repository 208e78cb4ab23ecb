"""Workers whose profiles can be worked out by hand."""

from __future__ import annotations

import numpy as np

from costmodels.throughput import (
    WorkerClass,
    WorkerProfile,
)


def profile(name="w", layers=4, seed=0, samples=32.0, scale=1.0, **given) -> WorkerProfile:
    """Layers of about 10 ms and 10 MB; every third has no parameters."""
    rng = np.random.default_rng(seed)
    usual = {
        "forward": scale * rng.uniform(0.005, 0.01, layers),
        "backward": scale * rng.uniform(0.01, 0.02, layers),
        "num_bytes": np.where(np.arange(layers) % 3 == 2, 0.0, rng.uniform(5e6, 2e7, layers)),
    }
    return WorkerProfile(name=name, samples=samples, **{**usual, **given})


def workers(count: int, **given) -> tuple[WorkerClass, ...]:
    return (WorkerClass(profile=profile(**given), count=count),)
