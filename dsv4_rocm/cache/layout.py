"""CacheLayout: the one description of every cache's bytes. No byte number of a cache stands anywhere else."""

from dataclasses import dataclass, fields, replace
from enum import Enum

from dsv4_rocm.model_spec import HEAD_DIM, INDEX_HEAD_DIM, ROPE_DIM, LayerKind
from dsv4_rocm.number_formats import FP4_GROUP

BLOCK_TOKENS = 256  # tokens per logical block of the compressed caches: 64 c4a entries or 2 c128a entries
SWA_PAGE_TOKENS = 64
STATE_PAGE_TOKENS = {LayerKind.C4A: 4, LayerKind.C128A: 8}
PAGE_ALIGNMENT = 576  # byte-encoded pages are padded to a multiple of this
NOPE_DIM = HEAD_DIM - ROPE_DIM
FP8_GROUP = 64  # NoPE channels that share one e8m0 scale


class Encoding(Enum):
    """How the values of a row are stored."""

    FP8 = "fp8"
    BF16 = "bf16"
    FP32 = "fp32"
    MXFP4 = "mxfp4"  # index rows only

    @property
    def value_bytes(self) -> int:
        return {Encoding.BF16: 2, Encoding.FP32: 4}[self]


class TileOrder(Enum):
    """How the rows of a page are ordered. Flat: row after row."""

    FLAT = "flat"
    TILED_16X16 = "tiled-16x16"


class CacheKind(Enum):
    """What one row of a cache holds."""

    SWA = "swa"
    C4A_ENTRIES = "c4a entries"
    C128A_ENTRIES = "c128a entries"
    INDEX = "index"
    C4A_STATE = "c4a state"
    C128A_STATE = "c128a state"
    INDEX_STATE = "index state"


STATE_KINDS = (CacheKind.C4A_STATE, CacheKind.C128A_STATE, CacheKind.INDEX_STATE)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The bytes of one cache. `require_same` refuses to bind a writer and a reader that differ.

    A page holds the data of all its rows, then the scales of all its rows, then padding.

    Attributes:
        kind: what a row holds.
        encoding: how values are stored.
        channels: values per row.
        data_bytes: bytes of one row in the data part of a page.
        scale_bytes: bytes of one row in the scale part of a page.
        tokens_per_page: tokens that one page of this cache stands for.
        tokens_per_row: 1 for SWA and state rows, 4 or 128 for entries.
        window: tokens kept per request, or None where everything is kept.
        padded_page_bytes: bytes of a page with its padding.
        order: order of the rows in a page.
        rotated: whether the stored values are the Hadamard transform of the keys; queries have to be, too.
        foreign: rows may come from a peer that writes -0 as 0x80, which FNUZ hardware takes for a NaN: readers take it
            for 0x00. Our writers never write it.
    """

    kind: CacheKind
    encoding: Encoding
    channels: int
    data_bytes: int
    scale_bytes: int
    tokens_per_page: int
    tokens_per_row: int
    window: int | None
    padded_page_bytes: int
    order: TileOrder = TileOrder.FLAT
    rotated: bool = False
    foreign: bool = False

    @property
    def rows_per_page(self) -> int:
        return self.tokens_per_page // self.tokens_per_row

    @property
    def row_bytes(self) -> int:
        return self.data_bytes + self.scale_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page that hold rows; what zeroing a page may touch."""
        return self.rows_per_page * self.row_bytes

    @property
    def scale_offset(self) -> int:
        """First byte of the scale part of a page."""
        return self.rows_per_page * self.data_bytes

    def data_offset(self, row: int, byte: int) -> int:
        """Where byte `byte` of the data of row `row` lies in a page."""
        if self.order is TileOrder.FLAT:
            return row * self.data_bytes + byte
        tile = row // 16 * 16 * self.data_bytes + byte // 16 * 256  # 16 rows of 16 bytes after each other
        return tile + row % 16 * 16 + byte % 16

    def require_same(self, other: "CacheLayout", writer: str, reader: str) -> None:
        """Refuse to bind a writer and a reader that disagree on bytes.

        Raises:
            ValueError: naming each field that differs, with both values.
        """
        differ = [
            f"{field.name} {_show(getattr(self, field.name))} against {_show(getattr(other, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]
        if differ:
            raise ValueError(f"{writer} and {reader} disagree on the bytes of the cache: {'; '.join(differ)}")


def _show(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _padded(num_bytes: int, encoding: Encoding) -> int:
    """Byte-encoded pools pad every page to the alignment; the wider encodings are for accuracy and stay unpadded."""
    if encoding in (Encoding.BF16, Encoding.FP32):
        return num_bytes
    return -(-num_bytes // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def _layout(
    kind: CacheKind,
    encoding: Encoding,
    channels: int,
    row: tuple[int, int],
    tokens: tuple[int, int],
    window: int | None,
    pool: Encoding,
) -> CacheLayout:
    data_bytes, scale_bytes = row
    tokens_per_page, tokens_per_row = tokens
    page = tokens_per_page // tokens_per_row * (data_bytes + scale_bytes)
    return CacheLayout(
        kind=kind,
        encoding=encoding,
        channels=channels,
        data_bytes=data_bytes,
        scale_bytes=scale_bytes,
        tokens_per_page=tokens_per_page,
        tokens_per_row=tokens_per_row,
        window=window,
        padded_page_bytes=_padded(page, pool),
    )


def _main_row(encoding: Encoding) -> tuple[int, int]:
    """(data, scale) bytes of a key row. fp8: 448 e4m3 NoPE and 64 bf16 rope channels; 7 e8m0 scales and a zero."""
    if encoding is Encoding.FP8:
        return NOPE_DIM + 2 * ROPE_DIM, NOPE_DIM // FP8_GROUP + 1
    return HEAD_DIM * encoding.value_bytes, 0


def _index_row(encoding: Encoding) -> tuple[int, int]:
    """(data, scale) bytes of an index row. fp8: 128 e4m3, one fp32 scale. mxfp4: 64 pairs, four e8m0 scales."""
    if encoding is Encoding.FP8:
        return INDEX_HEAD_DIM, 4
    if encoding is Encoding.MXFP4:
        return INDEX_HEAD_DIM // 2, INDEX_HEAD_DIM // FP4_GROUP
    return INDEX_HEAD_DIM * encoding.value_bytes, 0


def swa_layout(encoding: Encoding, window: int = 128) -> CacheLayout:
    """Window keys: one row per token."""
    row = _main_row(encoding)
    return _layout(CacheKind.SWA, encoding, HEAD_DIM, row, (SWA_PAGE_TOKENS, 1), window, encoding)


def entries_layout(kind: LayerKind, encoding: Encoding) -> CacheLayout:
    """Compressed keys: one row per 4 or 128 tokens."""
    cache_kind = {LayerKind.C4A: CacheKind.C4A_ENTRIES, LayerKind.C128A: CacheKind.C128A_ENTRIES}[kind]
    row = _main_row(encoding)
    return _layout(cache_kind, encoding, HEAD_DIM, row, (BLOCK_TOKENS, kind.ratio), None, encoding)


def index_layout(encoding: Encoding) -> CacheLayout:
    """Index keys of a c4a layer: one row per 4 tokens; mxfp4 rows are Hadamard-rotated."""
    row = _index_row(encoding)
    layout = _layout(CacheKind.INDEX, encoding, INDEX_HEAD_DIM, row, (BLOCK_TOKENS, 4), None, encoding)
    return replace(layout, rotated=encoding is Encoding.MXFP4)


def state_layout(kind: LayerKind, pool: Encoding, index: bool = False) -> CacheLayout:
    """Compressor state: one fp32 row [projection | gate + ape] per token, kept for one entry's pooling range.

    Args:
        kind: the layer's kind.
        pool: the encoding of the pool's other caches, which decides the padding.
        index: the state of the indexer's own compressor.
    """
    width = (INDEX_HEAD_DIM if index else HEAD_DIM) * kind.overlap
    cache_kind = CacheKind.INDEX_STATE if index else CacheKind[f"{kind.name}_STATE"]
    row = (2 * width * Encoding.FP32.value_bytes, 0)
    tokens = (STATE_PAGE_TOKENS[kind], 1)
    return _layout(cache_kind, Encoding.FP32, 2 * width, row, tokens, kind.overlap * kind.ratio, pool)
