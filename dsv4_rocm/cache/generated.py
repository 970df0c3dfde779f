"""Files that are written from the layouts: `python -m dsv4_rocm.cache.generated` in a checkout (`make docs`)."""

import sys
from collections.abc import Callable
from pathlib import Path

from dsv4_rocm.cache import cpp_header, layout_docs

FILES: dict[str, Callable[[], str]] = {
    "docs/cache-layout.md": layout_docs.render,
    "hip_kernels/dsv4_rocm_hip/include/dsv4/cache_layout.hpp": cpp_header.render,
}


def stale(root: Path) -> list[str]:
    """Files below `root` that are not what the layouts say, by path."""
    return [path for path, render in FILES.items() if not _is(root / path, render())]


def write(root: Path) -> list[str]:
    """Write what is stale below `root` and name it."""
    paths = stale(root)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(FILES[path](), encoding="utf-8")
    return paths


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    for written in write(Path.cwd()):
        sys.stdout.write(f"{written}\n")
