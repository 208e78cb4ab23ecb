"""What is said where nothing is as wished for: what is at fault, and what helps."""

from __future__ import annotations

import json

import pytest

import planner
from planner.errors import ContradictionError, InfeasibleError, InputError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 1024,
}
ODD = """name = "odd"
device = "a100-40gb"
host_level = "host"
default_precision = "bf16"
[[levels]]
name = "host"
size = 6
link = "nvlink3"
links = 12
[[levels]]
name = "network"
size = 4
link = "infiniband-hdr"
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("question")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "odd.toml").write_text(ODD)

    def ask(**options):
        options = {"cluster": str(folder / "odd.toml"), **options}
        return planner.optimize(str(folder / "config.json"), **options)

    return ask


def test_memory_is_at_fault_where_fewer_gpus_have_what_is_asked_for(asked):
    """DeepSpeed has nothing for 18 GPUs and 96 samples, but on 12 with more memory."""
    question = {"gpus": 18, "global_batch_size": 96, "framework": "deepspeed"}
    assert asked(**question).gpus == 12
    with pytest.raises(InfeasibleError, match="on 12 or fewer none is known to fit") as raised:
        asked(**question, memory="1.6 GiB")
    assert raised.value.status == "not found"


@pytest.mark.parametrize("forbid", [None, "pipeline"])
def test_a_framework_that_has_nothing_is_at_fault_whatever_else_is_asked(asked, forbid):
    with pytest.raises(ContradictionError, match="accelerate must run it; use other GPUs or ano"):
        asked(gpus=12, global_batch_size=50, framework="accelerate", keep="dp=3", forbid=forbid)


def test_offload_that_is_kept_and_ruled_out_is_told_as_both(asked):
    words = "offload is forbidden and offload=activations is kept, but offload can then be none"
    with pytest.raises(ContradictionError, match=words):
        asked(
            gpus=4,
            cluster="dgx-a100",
            global_batch_size=32,
            keep="offload=activations",
            forbid="offload",
        )


def test_offload_is_told_as_it_was_given(asked):
    with pytest.raises(InputError, match=r"--keep offload=activations\+weights \("):
        asked(
            gpus=6,
            global_batch_size=36,
            keep="offload=activations+weights",
            framework="megatron",
        )


@pytest.mark.parametrize("kept", ["cp=2", "sequence_parallel=yes"])
def test_a_network_without_attention_is_said_to_have_none(kept):
    with pytest.raises(ValueError, match="alone, since the network has no attention; keep"):
        planner.optimize("alexnet", gpus=4, keep=kept)
