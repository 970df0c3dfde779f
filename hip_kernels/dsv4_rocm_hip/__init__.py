"""HIP C++ kernels for gfx942 and gfx950, and their build."""
