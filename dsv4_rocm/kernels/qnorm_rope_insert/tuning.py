"""Launch settings of the qnorm_rope_insert kernel: 16 bytes of bf16 a lane. Computed; no time was measured."""

HEADS_PER_PROGRAM = 4
KEYS_PER_PROGRAM = 4
NUM_WARPS = 4
