"""Launch settings of the indexer_query kernel. Computed; no time was measured."""

NUM_WARPS = 4
MANY_TOKENS = 256  # from here on the chip is full of tokens, and heads of one token share its sines


def heads_per_program(tokens: int) -> int:
    """16: 16 bytes of bf16 a lane. 64: fewer instructions a head."""
    return 64 if tokens >= MANY_TOKENS else 16
