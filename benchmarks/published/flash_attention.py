"""Rates of attention on an H100 SXM5 that Shah et al. 2024 print in their figures 5 and 6.

"FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision". Batches hold
16,384 tokens whatever the length, and heads 2,048 features together; FP16. A causal mask is counted
as half of the products, a backward pass as 2.5 times those of the forward pass.
"""

from __future__ import annotations

from typing import Final

LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS: Final = 16384
FEATURES: Final = 2048

# direction, causal, features of a head: TFLOP/s by length
FLASH_ATTENTION_3: Final[dict[tuple[str, bool, int], tuple[float, ...]]] = {
    ("forward", False, 128): (467, 565, 625, 638, 646, 648),
    ("forward", True, 128): (292, 423, 521, 579, 602, 616),
    ("backward", False, 64): (272, 363, 422, 453, 472, 474),
    ("backward", False, 128): (316, 424, 501, 542, 559, 561),
}
