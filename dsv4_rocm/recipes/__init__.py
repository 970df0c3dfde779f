"""Serve recipes: typed data in recipes/*.yaml, rendered, checked against vLLM's parser, and planned."""
