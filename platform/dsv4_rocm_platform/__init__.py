"""The vLLM platform plugin: entry points, one platform class per vendor, and the serve plan."""
