"""The text of docs/cache-layout.md: words, rows and pages as byte pictures, blocks of the pool."""

from collections.abc import Iterable, Iterator

from dsv4_rocm.cache.layout import BLOCK_TOKENS, PAGE_ALIGNMENT, CacheLayout, Encoding
from dsv4_rocm.cache.pool import make_pool
from dsv4_rocm.cache.segments import Segment, all_layouts, segments
from dsv4_rocm.cache.specs import CacheEncodings, model_caches
from dsv4_rocm.model_spec import FLASH, PRO

_HEAD = f"""\
<!-- Generated from dsv4_rocm/cache/layout.py by `make docs`; do not edit. -->
# Cache layout

| word | means |
|---|---|
| token | one position of a sequence |
| entry | what 4 (c4a) or 128 (c128a) tokens are pooled into; exists once its last token is there |
| row | the bytes of one token or one entry in one cache |
| page | the rows of one cache that one block id points to |
| block | an id that a request owns, and the bytes of the pool behind it; its tokens differ from group to group |
| slot | block x rows per page + row; -1 is nowhere |

A page is the data of all its rows, then the scales of all its rows, then padding (with fp8 rows, to a multiple of
{PAGE_ALIGNMENT}). Entry e of ratio r lies in column e div ({BLOCK_TOKENS}/r) of the request's block table, in row
e mod ({BLOCK_TOKENS}/r). All offsets are 64-bit: a pool is larger than 2^31 bytes.

e4m3 bytes are OCP e4m3fn and canonical: never 0x80 (-0), never NaN. FNUZ hardware then reads the same byte as exactly
half its value, and one more in the exponent of the scale makes it whole. The gate of a state row holds the projection's
gate with the position's bias (ape) added. Numbers of several bytes are little-endian.
"""


def render() -> str:
    """The whole document."""
    parts = [_HEAD, *(_encoding(encoding) for encoding in Encoding), _pools()]
    return "\n".join(parts)


_TITLES = {
    Encoding.FP8: "fp8 rows (`--kv-cache-dtype fp8`)",
    Encoding.BF16: "bf16 rows (`--kv-cache-dtype bfloat16`)",
    Encoding.MXFP4: 'mxfp4 index rows (`--attention-config \'{"indexer_kv_dtype": "mxfp4"}\'`), beside fp8 key rows',
    Encoding.FP32: "fp32 rows (`--dtype float32`, for comparisons)",
}
_SAME = (("Swa", "C4aEntries", "C128aEntries"), ("Index",), ("C4aState",), ("C128aState",), ("IndexState",))


def _encoding(encoding: Encoding) -> str:
    layouts = all_layouts(encoding)
    lines = [f"## {_TITLES[encoding]}", "", *_table(layouts), ""]
    for names in _SAME:
        if names[0] not in layouts:
            continue
        first = layouts[names[0]]
        if encoding is not Encoding.FP8 and names[0].endswith("State"):
            continue  # the same rows as with fp8; only the padding differs, and the table says it
        titles = ", ".join(layouts[name].kind.value for name in names)
        size = f"{first.data_bytes:,} B" + (f" + {first.scale_bytes} B of scales" if first.scale_bytes else "")
        lines += [f"A row of {titles}: {size}.", "", *_indented(_row_picture(first)), ""]
        pages: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            pages.setdefault(tuple(_page_picture(layouts[name])), []).append(layouts[name].kind.value)
        for picture, kinds in pages.items():
            lines += [f"A page of {', '.join(kinds)}:", "", *_indented(picture), ""]
    return "\n".join(lines)


def _table(layouts: dict[str, CacheLayout]) -> Iterator[str]:
    yield "| cache | a row for | kept | tokens a page | rows | row bytes | scales at | page bytes | padded |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for layout in layouts.values():
        tokens = "1 token" if layout.tokens_per_row == 1 else f"{layout.tokens_per_row} tokens"
        kept = "all" if layout.window is None else f"last {layout.window}"
        scales = f"{layout.scale_offset:,}" if layout.scale_bytes else "-"
        yield (
            f"| {layout.kind.value} | {tokens} | {kept} | {layout.tokens_per_page} | {layout.rows_per_page} "
            f"| {layout.row_bytes:,} | {scales} | {layout.page_bytes:,} | {layout.padded_page_bytes:,} |"
        )


def _row_picture(layout: CacheLayout) -> list[str]:
    parts = segments(layout)
    data = _boxes([(one.offset, _label(one)) for one in parts if not one.in_scales], layout.data_bytes)
    if not layout.scale_bytes:
        return data
    scales = _boxes([(one.offset, _label(one)) for one in parts if one.in_scales], layout.scale_bytes)
    return [f"data    {data[0]}", f"        {data[1]}", f"scales  {scales[0]}", f"        {scales[1]}"]


def _label(segment: Segment) -> str:
    return f"{segment.name}: {segment.count} x {segment.dtype}"


def _page_picture(layout: CacheLayout) -> list[str]:
    last = layout.rows_per_page - 1
    data, scales = layout.data_bytes, layout.scale_bytes
    boxes = [(0, "row 0"), (data, "row 1")]
    if last > 2:
        boxes += [(2 * data, "..."), (last * data, f"row {last}")]
    if scales:
        start = layout.scale_offset
        boxes += [(start, "scales 0"), (start + scales, "scales 1")]
        if last > 2:
            boxes += [(start + 2 * scales, "..."), (start + last * scales, f"scales {last}")]
    if layout.padded_page_bytes > layout.page_bytes:
        boxes.append((layout.page_bytes, "padding"))
    return _boxes(boxes, layout.padded_page_bytes)


def _boxes(boxes: list[tuple[int, str]], end: int) -> list[str]:
    """Two lines: contents between bars, and under each bar the byte it stands at."""
    top, bottom = "", ""
    for (offset, label), following in zip(boxes, [*(start for start, _ in boxes[1:]), end], strict=True):
        width = max(len(label) + 2, len(f"{offset:,}") + 1, len(f"{following:,}") + 1)
        top += f"|{label:^{width}}"
        bottom += f"{offset:<{width + 1},}"
    return [f"{top}|", f"{bottom}{end:,}"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


_POOLS = """\
## Blocks of the pool

Caches with as many tokens a page and the same window share a group (large ones are split in two). A group has a block
table and a block size of its own. All groups draw blocks from one pool. A block holds one page of every cache of the
group that owns it, and costs the same bytes in every group, however many tokens it stands for there.
`dsv4-rocm plan` prints what a server's requests are charged.

| model | rows | group | tokens a block | caches | bytes used of a block |
|---|---|---|---|---|---|
"""


def _pools() -> str:
    rows = ""
    for name, spec in (("Flash", FLASH), ("Pro", PRO)):
        for encoding in (Encoding.FP8, Encoding.BF16):
            pool = make_pool(model_caches(spec, CacheEncodings(encoding, encoding)))
            for group in pool.groups:
                rows += f"| {name} | {encoding.value} | {group.role} | {group.block_tokens} | {len(group.caches)} "
                rows += f"| {group.bytes_used:,} of {pool.block_bytes:,} |\n"
    return _POOLS + rows
