"""Launch settings of the indexer_query kernel: 16 bytes of bf16 a lane. Computed; no time was measured."""

HEADS_PER_PROGRAM = 16
NUM_WARPS = 4
