"""Which rows of a cache are read later: which columns of a block table need a page, and for how long."""

from dataclasses import dataclass

from dsv4_rocm.cache.layout import BLOCK_TOKENS, CacheLayout
from dsv4_rocm.model_spec import LayerKind


@dataclass(frozen=True, slots=True)
class InFlight:
    """What may be scheduled and not yet settled.

    Attributes:
        batched_tokens: `--max-num-batched-tokens`.
        batches: steps in flight at once: 2 with async scheduling, else 1.
        rollback_tokens: tokens that may be taken back, and one: 1 + drafts of a step x batches.
        early: a page that only scheduled steps read is free for the next step: steps run one after the other. Not where
            a KV connector reads pages beside them.
    """

    batched_tokens: int
    batches: int = 1
    rollback_tokens: int = 1
    early: bool = True

    @property
    def tokens(self) -> int:
        return self.batched_tokens * self.batches

    @property
    def held_batches(self) -> int:
        """Steps whose pages are held at once."""
        return 1 if self.early else self.batches


STEADY_DECODE = InFlight(1)


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule for one kind of state. Positions are absolute; a column stands for `page` positions.

    A step reads rows before its first token; rows of its own tokens come from the projections (see `compress_insert`).
    So a column needs a page if a later step reads it, a step that starts behind a prefix hit reads it, or a step that
    starts again after taking tokens back does.

    Attributes:
        ratio: tokens per entry.
        overlap: groups that an entry pools: the open one and, for ratio 4, the one before.
        page: tokens of a column.
        rollback_tokens: tokens that a step may take back, and one more for a decoder that computes the last token of a
            prompt again. At least 1.
    """

    ratio: int
    overlap: int
    page: int
    rollback_tokens: int = 1

    @classmethod
    def of(cls, layout: CacheLayout, rollback_tokens: int = 1) -> "Retention":
        """The rule for a state layout, whose window is the pooling range of an entry."""
        kind = LayerKind.C4A if layout.window == LayerKind.C4A.overlap * LayerKind.C4A.ratio else LayerKind.C128A
        return cls(kind.ratio, kind.overlap, layout.tokens_per_page, rollback_tokens)

    def first_read(self, position: int) -> int:
        """First row that a step starting at `position` may read."""
        return max(0, position // self.ratio * self.ratio - (self.overlap - 1) * self.ratio)

    def retained_from(self, position: int) -> int:
        """First row that may be read once the tokens before `position` are scheduled."""
        return self.first_read(max(0, position - self.rollback_tokens))

    @property
    def hit_columns(self) -> int:
        """Columns below a boundary of 256 tokens that a prefix hit wants: those of the pooling range, or none.

        A hit never lands inside a group of 128, which divides 256, so nothing is kept for it.
        """
        return -(-(self.overlap * self.ratio - 1) // self.page) if self.overlap > 1 else 0

    def needs_page(self, column: int, end: int, cached: bool, peek: bool = False) -> bool:
        """Whether a column gets a page in the chunk that ends at `end`.

        Args:
            column: its index.
            end: end of the chunk, without draft slots behind it.
            cached: whether later requests may hit this one's columns.
            peek: whether a hit wants one column more behind the boundary, as with drafts.
        """
        if (column + 1) * self.page > self.retained_from(end):
            return True
        if not cached or not self.hit_columns:
            return False
        columns = BLOCK_TOKENS // self.page
        return column % columns >= columns - self.hit_columns or (peek and column > 0 and column % columns == 0)

    def held_columns(self, chunk_tokens: int, chunks: int = 1) -> int:
        """Most columns with a page that a request holds at once.

        Args:
            chunk_tokens: tokens of the largest chunk.
            chunks: chunks whose pages are held until they are settled.
        """
        reach = self.overlap * self.ratio - 1
        tail = -(-(reach + 2 * self.rollback_tokens) // self.page) + 1
        boundaries = self.hit_columns * chunks * (chunk_tokens // BLOCK_TOKENS + 1)
        return (chunks + 1) * tail + boundaries + (1 if self.hit_columns else 0)
