"""The block pool as vLLM's planner packs it: groups of caches, bytes of a block, blocks a request is charged."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dsv4_rocm.cache.layout import STATE_KINDS, CacheLayout
from dsv4_rocm.cache.retention import InFlight, Retention


class StatePages(Enum):
    """How windows and states are held and charged."""

    DENSE = "dense"  # as vLLM's sliding windows: every column of all tokens in flight has a page until they are settled
    GAPPED = "gapped"  # as our managers: state only where a later step reads it, and no page for a step that is over


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Caches that share one block table; a block of the pool holds one page of each of them.

    Attributes:
        caches: layout by full name.
    """

    caches: Mapping[str, CacheLayout]

    @property
    def first(self) -> CacheLayout:
        return next(iter(self.caches.values()))

    @property
    def block_tokens(self) -> int:
        """Tokens that one block stands for in this group: 256, 64, 8 or 4. There is no block size of the whole pool."""
        return self.first.tokens_per_page

    @property
    def bytes_used(self) -> int:
        """Bytes of a block that this group's pages fill; the rest of the block is idle while the group owns it."""
        return sum(layout.padded_page_bytes for layout in self.caches.values())

    @property
    def role(self) -> str:
        """`entries`, `window` or `state`."""
        if self.first.window is None:
            return "entries"
        return "state" if self.first.kind in STATE_KINDS else "window"

    def columns(self, length: int, in_flight: InFlight, state_pages: StatePages) -> int:
        """Blocks that a request of `length` tokens is charged in this group."""
        window, page = self.first.window, self.block_tokens
        if window is None:
            return -(-length // page)
        tokens = in_flight.tokens
        if state_pages is StatePages.GAPPED:
            tokens = in_flight.batched_tokens * in_flight.held_batches + 2 * (in_flight.rollback_tokens - 1)
        # One more column than the tokens fill: a window may start inside a page.
        filled = -(-min(window - 1 + tokens, length) // page) + 1
        if state_pages is StatePages.DENSE or self.role != "state":
            return filled
        rule = Retention.of(self.first, in_flight.rollback_tokens)
        return min(filled, rule.held_columns(in_flight.batched_tokens, in_flight.held_batches))


@dataclass(frozen=True, slots=True)
class Pool:
    """All groups of a model over one pool of equal blocks.

    Attributes:
        groups: in vLLM's order.
        block_bytes: bytes of a block in every group (the widest group's pages).
    """

    groups: tuple[CacheGroup, ...]
    block_bytes: int

    def columns(self, length: int, in_flight: InFlight, state_pages: StatePages) -> tuple[int, ...]:
        """Blocks that a request of `length` tokens is charged, by group."""
        return tuple(group.columns(length, in_flight, state_pages) for group in self.groups)

    def request_blocks(
        self, length: int, in_flight: InFlight, state_pages: StatePages, roles: Iterable[str] | None = None
    ) -> int:
        """Blocks that a request of `length` tokens is charged in the groups of some roles (None: all)."""
        wanted = None if roles is None else tuple(roles)
        charged = zip(self.groups, self.columns(length, in_flight, state_pages), strict=True)
        return sum(columns for group, columns in charged if wanted is None or group.role in wanted)

    def largest_length(self, blocks: int, limit: int, in_flight: InFlight, state_pages: StatePages) -> int:
        """Longest request, up to `limit` tokens, that a pool of `blocks` admits; 0 if there is none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            # vLLM keeps one block (the null block) for itself.
            if self.request_blocks(middle, in_flight, state_pages) <= blocks - 1:
                low = middle
            else:
                high = middle - 1
        return low


def make_pool(caches: Mapping[str, CacheLayout]) -> Pool:
    """Pack caches as vLLM's planner does for block-outermost layouts.

    Args:
        caches: layout by full name, in registration order.
    """
    groups = tuple(CacheGroup({name: caches[name] for name in names}) for names in _packed(caches))
    return Pool(groups, max(group.bytes_used for group in groups))


def _packed(caches: Mapping[str, CacheLayout]) -> list[list[str]]:
    """Names by group. Caches with one page size, or of one type, are one group.

    Others are bucketed by type. A bucket that mixes page sizes in equal numbers (c4a state and index state) stays whole
    and sets how many layers a group has at least; larger buckets of one page size are split towards that number.
    """
    buckets: dict[tuple[int, int | None], list[str]] = {}
    for name, layout in caches.items():
        buckets.setdefault((layout.tokens_per_page, layout.window), []).append(name)
    pages = {bucket: _by_page(names, caches) for bucket, names in buckets.items()}
    if len(buckets) == 1 or len({layout.padded_page_bytes for layout in caches.values()}) == 1:
        return list(buckets.values())
    repeats = _repeats_per_group(list(pages.values()))
    split: dict[tuple[int, int | None], int] = {}
    for bucket, sizes in pages.items():
        split[bucket] = -(-_most(sizes) // repeats) if repeats and _balanced(sizes) else 1
    if repeats is None:
        _split_windows(buckets, pages, split)
    groups: list[list[str]] = []
    for bucket, names in buckets.items():
        if split[bucket] == 1:
            groups.append(names)
            continue
        rounds = list(zip(*pages[bucket].values(), strict=False))
        groups += [[name for one in rounds[i :: split[bucket]] for name in one] for i in range(split[bucket])]
    return groups


def _by_page(names: Sequence[str], caches: Mapping[str, CacheLayout]) -> dict[int, list[str]]:
    sizes: dict[int, list[str]] = {}
    for name in names:
        sizes.setdefault(caches[name].padded_page_bytes, []).append(name)
    return sizes


def _most(sizes: Mapping[int, Sequence[str]]) -> int:
    return max(map(len, sizes.values()))


def _balanced(sizes: Mapping[int, Sequence[str]]) -> bool:
    return len(set(map(len, sizes.values()))) == 1


def _repeats_per_group(pages: list[dict[int, list[str]]]) -> int | None:
    """Layers of each page size in a group: the number that pads least, at least those of a bucket that stays whole."""
    balanced = [sizes for sizes in pages if _balanced(sizes)]
    lowest = max((_most(sizes) for sizes in balanced if len(sizes) > 1), default=0)
    if not lowest:
        return None
    counts = Counter(_most(sizes) for sizes in balanced)
    padding = {n: sum(-count % n * times for count, times in counts.items()) for n in range(lowest, max(counts) + 1)}
    return min(padding, key=lambda n: (padding[n], -n))


def _split_windows(
    buckets: Mapping[tuple[int, int | None], list[str]],
    pages: Mapping[tuple[int, int | None], dict[int, list[str]]],
    split: dict[tuple[int, int | None], int],
) -> None:
    """Without a repeating pattern, window buckets are split so that none widens the block that the others need."""
    widest = {
        bucket: sum(
            -(-len(names) // (len(buckets[bucket]) if bucket[1] is not None else 1)) * page
            for page, names in sizes.items()
        )
        for bucket, sizes in pages.items()
    }
    anchor = max(widest.values())
    for bucket, sizes in pages.items():
        if bucket[1] is not None:
            per_block = max(anchor // next(iter(sizes)), 1)
            split[bucket] = max(split[bucket], -(-len(buckets[bucket]) // per_block))
