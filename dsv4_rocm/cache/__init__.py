"""The paged caches: their byte layouts, their addresses, and the specs that vLLM's planner reads."""
