"""The indexer's queries: rotation, quantization, folded head weights."""
