"""The compressor: store state rows, close groups, write entries."""
