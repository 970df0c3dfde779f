"""DeepSeek-V4 for vLLM on AMD Instinct: model, attention, KV layout and kernels, one source for every vendor."""

__version__ = "0.1.0"
