"""Transformers of Hugging Face and of plain PyTorch in small, ways to spoil them, and checkpoints.

Ranks are processes of their own, which import this file.
"""

from __future__ import annotations

import torch
from torch import nn

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 96,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


def _hugging_face(model, config, **options):
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


def llama():
    return _hugging_face("LlamaForCausalLM", "LlamaConfig", **GROUPED)


def mistral():
    return _hugging_face("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=8)


def mixtral():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _hugging_face("MixtralForCausalLM", "MixtralConfig", **GROUPED, **experts)


def qwen():
    return _hugging_face("Qwen2ForCausalLM", "Qwen2Config", **GROUPED)


def bert():
    return _hugging_face(
        "BertForMaskedLM",
        "BertConfig",
        **SMALL,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32}
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    return _hugging_face("GPT2LMHeadModel", "GPT2Config", **sizes, **drops)


def phi():
    drops = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attention_dropout"), 0.0)
    return _hugging_face("PhiForCausalLM", "PhiConfig", **SMALL, **drops)


def gptj():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "rotary_dim": 4}
    return _hugging_face("GPTJForCausalLM", "GPTJConfig", **sizes, bos_token_id=0, eos_token_id=0)


def glm():
    return _hugging_face("GlmForCausalLM", "GlmConfig", **GROUPED, head_dim=8, pad_token_id=0)


def gemma2():
    # scores are capped between the products, and the head has the weights of the table
    sizes = {**GROUPED, "head_dim": 8, "sliding_window": 8, "pad_token_id": 0}
    return _hugging_face("Gemma2ForCausalLM", "Gemma2Config", **sizes)


class Block(nn.Module):
    """An encoder block with queries, keys and values side by side."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Plain(nn.Module):
    """A language model with a table of positions."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(96, 32), nn.Parameter(torch.randn(16, 32))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 96)

    def forward(self, tokens):
        x = self.table(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gradients_not_summed(planned):
    """Every rank keeps its own gradients."""
    planned._built.ranks.all_reduce = lambda tensors, axes: list(tensors)


def norms_miss_an_axis(planned):
    """Gradients of norms are summed over replicas, but not over the ranks of a sequence."""
    ranks = planned._built.ranks
    real = ranks.all_reduce
    ranks.all_reduce = lambda tensors, axes: real(tensors, frozenset({0}))


def bias_added_by_all(planned):
    """Every summand of a product has all of the bias."""
    for step in planned._built.program.steps:
        if step.given.get("members", 1) > 1:
            step.given["members"] = 1


def inputs_not_summed(planned):
    """Gradients of what several ranks read are not summed over these."""
    ranks = planned._built.ranks
    real = ranks.redistribute

    def spoiled(x, move, backward=False):
        if backward and move.cause != "weight" and move.source.dims == move.target.dims:
            return x
        return real(x, move, backward)

    ranks.redistribute = spoiled


def mask_starts_at_zero(planned):
    """Every block of queries sees the keys that the first one sees."""
    for step in planned._built.program.steps:
        if step.given.get("first") is not None and "attn_mask" in step.given:
            step.given["first"] = 0


def experts_keep_gradients(planned):
    """Gradients of tokens that went to other ranks do not come back."""
    for step in planned._built.program.steps:
        if hasattr(step.run, "send"):
            real = step.run.send

            def spoiled(x, sizes, place, backward, real=real):
                found = real(x, sizes, place, backward)
                return found * (0.0 if backward and place.endswith("to_2") else 1.0)

            step.run.send = spoiled


def numbers(planned):
    """All parameters; tensors are not sent between processes that end."""
    return {name: one.numpy().copy() for name, one in planned.full_parameters().items()}


def save_and_load(tasks, folder):
    """Train under one plan, save, load under another one: what parameters and losses are then."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from planner.torch.apply import apply
    from planner.torch.verify.training import make_transformer

    found = []
    x = torch.randint(96, (8, 16), generator=torch.Generator().manual_seed(0))
    for number, task in enumerate(tasks):
        torch.manual_seed(number)
        model = make_transformer(task.source, task.one, task.stack, 16).double()
        planned = apply(task.plan, model)
        optimizer = torch.optim.AdamW(planned.parameters(), lr=1e-3)
        if number:
            state, moments = get_state_dict(planned, optimizer)
            checkpoint.load({"model": state, "optimizer": moments}, checkpoint_id=folder)
            set_state_dict(planned, optimizer, model_state_dict=state, optim_state_dict=moments)
        before = numbers(planned)
        loss = planned.step(planned.local_batch(x), target=planned.local_batch(x, "target"))
        optimizer.step()
        optimizer.zero_grad()
        found.append((before, numbers(planned), float(loss)))
        if not number:
            state, moments = get_state_dict(planned, optimizer)
            checkpoint.save({"model": state, "optimizer": moments}, checkpoint_id=folder)
    return found
