"""Small configs of transformers, a runtime and public tables: files of other people's making."""

from __future__ import annotations

from typing import Any

import good_files

Tree = dict[str, Any]

_SIZES: Tree = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
}


def llama() -> Tree:
    """Grouped queries, as most configs of today have."""
    more = {"num_key_value_heads": 2, "tie_word_embeddings": True, "head_dim": 16}
    said = {"architectures": ["LlamaForCausalLM"], "rope_scaling": None, "torch_dtype": "bfloat16"}
    return {"model_type": "llama", **_SIZES, **more, **said, "hidden_act": "silu"}


def gpt2() -> Tree:
    """Sizes under other names."""
    sizes = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 32}
    return {"model_type": "gpt2", **sizes, "resid_pdrop": 0.1, "activation_function": "gelu_new"}


def mixtral() -> Tree:
    """A mixture of experts, and a window."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}
    return {"model_type": "mixtral", **_SIZES, **experts, "num_key_value_heads": 2}


def bert() -> Tree:
    """An encoder."""
    more = {"type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1}
    return {"model_type": "bert", **_SIZES, **more, "_name_or_path": "somebody/small-bert"}


def t5() -> Tree:
    """An encoder and a decoder."""
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    more = {"num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "vocab_size": 256}
    return {"model_type": "t5", **sizes, **more, "n_positions": 32}


def vit() -> Tree:
    """Images in patches."""
    more = {"image_size": 32, "patch_size": 8, "num_channels": 3}
    return {"model_type": "vit", **_SIZES, **more, "id2label": {"0": "cat", "1": "dog"}}


CONFIGS = (llama, gpt2, mixtral, bert, t5, vit)


def runtime() -> Tree:
    """A runtime of one's own."""
    fields = {
        "description": "all of one's own",
        "launch_time": "12 us",
        "bucket": "8 MiB",
        "first_bucket": "1 MiB",
        "fusion": "64 MiB",
        "cycle": "1 ms",
        "negotiation_base": "100 us",
    }
    return {"mine": fields}


def table() -> Tree:
    """A measured table as JSON."""
    rows = good_files.TABLE.split("\n")
    columns, *rest = rows[2:-1]
    return {
        "format": "planner-table",
        "provenance": {"device": "v100", "date": "2026-01-01"},
        "columns": columns.split(","),
        "rows": [cells(row) for row in rest],
    }


def cells(row: str) -> list[object]:
    """The figures of a row as numbers."""
    return [_number(cell) for cell in row.split(",")]


def _number(cell: str) -> object:
    try:
        return float(cell) if "." in cell else int(cell)
    except ValueError:
        return cell


IMPORTS: dict[str, tuple[str, str]] = {
    "nccl-tests": (
        "all_reduce.log",
        "#  Rank  0 Group  0 Pid  9 on  host1 device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
        "#  Rank  1 Group  0 Pid  9 on  host1 device  1 [0x08] NVIDIA A100-SXM4-80GB\n"
        "     1048576  262144  float  sum  -1  35.2  29.8  29.8  0  34.9  30.0  30.0  0\n"
        "     2097152  524288  float  sum  -1  50.2  41.8  41.8  0  49.9  42.0  42.0  0\n",
    ),
    "neusight": (
        "products.csv",
        "op,batch,m,k_inner,n_out,gpu,precision,fwd_ms\n"
        "linear,4,128,64,256,A100,fp32,0.05\nbmm,4,128,64,128,A100,fp32,0.07\n",
    ),
    "deepbench": (
        "convolutions.csv",
        "n,c,h,w,k,r,s,pad_h,pad_w,stride_h,stride_w,gpu,precision,fwd_ms,bwd_data_ms,bwd_filter_ms\n"
        "8,3,32,32,16,3,3,1,1,1,1,V100,fp32,0.05,0.06,0.07\n",
    ),
}
"""Forms of `planner tables import`: the name of a file, and what is in it."""
