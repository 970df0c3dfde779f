"""The vendor-neutral DeepSeek-V4 model as vLLM serves it: wiring only."""
