"""Attention over the window, the chosen entries and the sink, read in place from the paged caches."""
