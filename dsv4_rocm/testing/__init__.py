"""Installed test helpers: tiny checkpoints, oracles, inputs, the CDNA emulator."""
