"""The part of the benchmark that needs a GPU: right results against fp64, then times."""
