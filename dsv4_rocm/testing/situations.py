"""Steps that put an engine through every situation its scheduler can make: mixed batches, prefix hits, preemption."""

from typing import Any

import torch


def prompt(length: int, seed: int) -> list[int]:
    """Random token ids past the special ones."""
    ids: list[int] = torch.randint(32, 2048, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


SHORT_STEPS: list[dict[str, Any]] = [
    {"name": "mixed", "prompts": [prompt(390, 2), prompt(300, 3), prompt(37, 4), prompt(129, 5)], "max_tokens": 24},
    {"name": "cold", "prompts": [prompt(700, 6)], "max_tokens": 24},
    {"name": "warm", "prompts": [prompt(700, 6)], "max_tokens": 24},
    {"name": "warm-other-tail", "prompts": [prompt(700, 6)[:600] + prompt(60, 7)], "max_tokens": 12},
    {
        "name": "preempted",
        "prompts": [prompt(150 + 33 * i, 20 + i) for i in range(3)],
        "max_tokens": 24,
        "preempt_at": [4, 14, 20],
    },
]
LONG_STEP: dict[str, Any] = {"name": "long", "prompts": [prompt(700, 1)], "max_tokens": 40, "prompt_logprobs": True}
# Around every length at which an entry closes, a page fills or a block ends; each differs in its first token.
BOUNDARY_LENGTHS = [3, 4, 7, 8, 124, 127, 128, 129, 130, 255, 256, 257, 383, 384, 385, 511, 512, 513]
BOUNDARY_STEPS: list[dict[str, Any]] = [
    {"name": "boundaries", "prompts": [prompt(n, 1000 + n) for n in BOUNDARY_LENGTHS], "max_tokens": 3},
    {"name": "boundaries-warm", "prompts": [prompt(n, 1000 + n) for n in (256, 257, 513)], "max_tokens": 3},
]
