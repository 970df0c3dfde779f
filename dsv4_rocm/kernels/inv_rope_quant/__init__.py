"""The inverse rotation of the attention output, before the grouped output projection."""
