"""Row addressing inside Triton kernels: the block of a request's row, as `addressing.row_slots` defines it."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def row_block(table_ptr, table_stride, request, row, ROWS_PER_PAGE: tl.constexpr):
    """Block (int64) that holds row `row` of a request; the row must be one that the table covers."""
    column = row // ROWS_PER_PAGE
    return tl.load(table_ptr + request.to(tl.int64) * table_stride + column).to(tl.int64)
