"""Launch settings of the inv_rope_quant kernel: 16 bytes of results a lane. Computed; no time was measured."""

HEADS_PER_PROGRAM = 8
NUM_WARPS = 4
