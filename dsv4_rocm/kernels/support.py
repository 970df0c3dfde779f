"""The table of docs/kernels.md: which implementations serve an op on which architecture; `make docs` writes it."""

import re
import sys
from pathlib import Path

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import CacheEncodings, index_encoding
from dsv4_rocm.kernels.selection import OPS, implementations

ARCHES = ("gfx942", "gfx950", "sm90", "sm100", "host")
BEGIN = "<!-- support: written by `make docs` -->"
END = "<!-- end of support -->"
_PAGE = "docs/kernels.md"


def serving(op: str, name: str, rows: Encoding) -> list[str]:
    """Implementations that take an op with these key rows and the index rows of the architecture, in their order."""
    gpu = arch.get(name)
    encodings = CacheEncodings(rows, index_encoding(None, rows, gpu))
    return [one.name for one in implementations(op) if one.refuses(gpu, encodings) is None]


def table() -> str:
    """Markdown: a row per op and kind of key rows, a column per architecture; the first name is what a server takes."""
    lines = [f"| op | key rows | {' | '.join(ARCHES)} |", f"|---|---|{'---|' * len(ARCHES)}"]
    for op in OPS:
        found: dict[tuple[str, ...], list[str]] = {}
        for rows in (Encoding.FP8, Encoding.BF16, Encoding.FP32):
            cells = tuple(", ".join(serving(op, name, rows)) for name in ARCHES)
            found.setdefault(cells, []).append(rows.value)
        for cells, rows_alike in found.items():
            lines.append(f"| `{op}` | {', '.join(rows_alike)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table between its two markers replaced.

    Raises:
        ValueError: a marker is missing.
    """
    if BEGIN not in page or END not in page:
        raise ValueError(f"{_PAGE} must hold {BEGIN} and {END}")
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", page)


def main() -> None:
    """Entry of `make docs`."""
    path = Path.cwd() / _PAGE
    text = path.read_text(encoding="utf-8")
    if (new := with_table(text)) != text:
        path.write_text(new, encoding="utf-8")
        sys.stdout.write(f"{_PAGE}\n")


if __name__ == "__main__":
    main()
