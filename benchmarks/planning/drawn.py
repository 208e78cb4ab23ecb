"""Random questions to the planner, each from a seed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.planning.monotonic import Question
from costmodels.cluster import load_cluster

# Networks of each kind, the small ones written as config files.
BUILT_IN = (
    *("gpt2", "gpt2-xl", "bert-large", "vit-l", "t5-11b", "llama3-8b", "llama3.2-1b"),
    *("mixtral-8x7b", "qwen2-7b", "qwen3-30b-a3b", "gpt3-13b"),
)
IMAGES = ("resnet18", "resnet50", "unet", "vgg16")
# Of so many seeds one is about a network without attention. [items]
IMAGES_EACH = 5
CLUSTERS = (
    *("dgx-a100", "dgx-a100", "dgx-h100", "aws-p3.2xlarge", "aws-p3.16xlarge", "abci"),
    *("dgx1-v100", "juwels-booster", "lassen", "hkbu-10gbe", "aws-p4de.24xlarge"),
)
RUNTIMES = (
    *(None,) * 8,
    "fsdp",
    "torchtitan",
    "megatron",
    "megatron-core",
    "deepspeed",
    "nanotron",
)
GPUS = (2, 3, 4, 4, 6, 8, 8, 8, 12, 16)
FORBID = ("tensor", "pipeline", "context", "sequence", "accumulation", "interleaving", "sharding")
FORBID_MORE = ("hybrid", "recompute", "offload", "data", "expert")
KEEP = (
    *("tp=2", "tp=4", "pp=2", "dp=2", "dp=4", "micro_batch_size=1", "micro_batch_size=2", "zero=1"),
    *("zero=3", "recompute=full", "recompute=none", "micro_batches=4", "sequence_parallel=no"),
    *("schedule=1f1b", "shard_size=2", "chunks=2", "offload=none"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(Question):
    """A question, with what is held fixed and ruled out.

    Parameters
    ----------
    keep, forbid
        As of `planner.optimize`.
    others
        The other arguments.
    """

    keep: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    others: tuple[tuple[str, object], ...] = ()

    @property
    def inputs(self) -> dict[str, object]:
        """The arguments of every command."""
        given: dict[str, object] = {
            "gpus": self.gpus,
            "cluster": self.machine,
            "global_batch_size": self.batch,
        }
        return {**given, **dict(self.others)}

    @property
    def wishes(self) -> dict[str, object]:
        """The arguments of the search alone."""
        found = {"keep": ",".join(self.keep), "forbid": ",".join(self.forbid)}
        return {name: value for name, value in found.items() if value}

    def words(self) -> str:
        """The question in a few words."""
        extras = {"host": self.host, "network": self.network}
        more = [f"{name}x{value:g}" for name, value in extras.items() if value != 1.0]
        more += [f"memory {self.memory / 2**20:.1f}MiB"] if self.memory < math.inf else []
        more += [f"{name} {value}" for name, value in (*self.wishes.items(), *self.others)]
        model = Path(self.model).stem
        return " ".join([model, self.cluster, str(self.gpus), f"b{self.batch}", *more])


def drawn(rng: random.Random, seed: int, folder: Path) -> Drawn:
    """The question of a seed.

    Parameters
    ----------
    rng, seed
        Draws the rest, and which one it is.
    folder
        Where the config files of small networks are written.
    """
    others: dict[str, object] = {}
    cluster = load_cluster(name := rng.choice(CLUSTERS))
    gpus = rng.choice([count for count in GPUS if cluster.can_use(count)])
    half = "bf16" if "bf16" in cluster.device.peak_flops else "fp16"
    if seed % IMAGES_EACH == 0:
        model = rng.choice(IMAGES)
        return Drawn(
            model=model,
            cluster=name,
            gpus=gpus,
            batch=gpus * rng.choice([1, 2, 4, 8]),
            forbid=(rng.choice(("hybrid", "pipeline", "recompute", "sharding", "tensor")),),
            others=(("optimizer", rng.choice(["sgd", "adam"])),),
        )
    if rng.random() < 0.65:
        model = str(folder / f"seed{seed}.json")
        Path(model).write_text(json.dumps(_small_config(rng)), encoding="utf-8")
    else:
        model = rng.choice(BUILT_IN)
        others["input_size"] = None if "vit" in model else rng.choice([512, 1024])
    others |= {
        "precision": rng.choice(["fp32", *[half] * 3]),
        "optimizer": rng.choice(["adam", "adam", "sgd"]),
        "runtime": rng.choice(RUNTIMES),
    }
    keep: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    if rng.random() < 0.5:
        forbid = tuple(rng.sample((*FORBID, *FORBID_MORE), rng.choice([1, 2])))
    if rng.random() < 0.4:
        keep = (rng.choice(KEEP),)
    return Drawn(
        model=model,
        cluster=name,
        gpus=gpus,
        batch=rng.choice([4, 8, 12, 16, 32, 64]),
        keep=keep,
        forbid=forbid,
        others=tuple((k, v) for k, v in others.items() if v is not None),
    )


def wider(asked: Drawn, rng: random.Random) -> Iterator[Drawn]:
    """The question with one thing less kept or forbidden, and with nothing."""
    wishes = [("keep", one) for one in asked.keep] + [("forbid", one) for one in asked.forbid]
    if not wishes:
        return
    if asked.model in IMAGES:
        yield replace(asked, forbid=("context",))
        return
    yield replace(asked, keep=(), forbid=())
    if len(wishes) > 1:
        name, gone = rng.choice(wishes)
        rest = tuple(one for one in getattr(asked, name) if one != gone)
        yield replace(asked, keep=rest) if name == "keep" else replace(asked, forbid=rest)


def _small_config(rng: random.Random) -> dict[str, object]:
    """A small transformer, as its config file says."""
    heads = rng.choice([4, 8, 12])
    hidden = heads * rng.choice([32, 64, 128])
    config: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": rng.choice([2, 3, 4]) * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([heads, heads // 2, heads // 4]),
        "num_hidden_layers": rng.choice([1, 2, 3, 4, 6, 8, 12]),
        "vocab_size": rng.choice([1000, 32000, 50257]),
        "max_position_embeddings": rng.choice([128, 512, 1024, 4096]),
        "tie_word_embeddings": rng.random() < 0.3,
    }
    if rng.random() < 0.2:
        config |= {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    return config
