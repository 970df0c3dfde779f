"""Query norm, rotation of query and window key, and the insertion of the key into the SWA cache."""
