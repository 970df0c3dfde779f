"""The attention layer of DeepSeek-V4: data flow, compressor, indexer, and vLLM's backend and metadata contract."""
