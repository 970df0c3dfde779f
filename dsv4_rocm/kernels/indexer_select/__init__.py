"""The indexer's selection of the entries that a c4a layer attends to."""
