"""The attention ops. Each folder holds one: `op.py` says what it computes, `reference.py` defines it in plain torch."""
