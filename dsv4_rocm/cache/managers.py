"""vLLM's view of windows and compressor state: their specs, and the managers that give pages to columns.

Both differ from vLLM's sliding windows in what is held: pages are freed as soon as no later step reads them, and state
has pages in those columns alone that are read after the chunk that fills them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import KVCacheSpec, SlidingWindowMLASpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from dsv4_rocm.cache.retention import InFlight, Retention


@dataclass(frozen=True, kw_only=True)
class WindowSpec(SlidingWindowMLASpec):
    """A window whose pages are freed when the next step is scheduled.

    Attributes:
        rollback_tokens: as `InFlight`'s.
        batches: as `InFlight`'s.
        early: as `InFlight`'s.
    """

    rollback_tokens: int = 1
    batches: int = 1
    early: bool = True

    def in_flight(self, max_in_flight_tokens: int) -> InFlight:
        """What a request may have in flight, from vLLM's total over all batches."""
        rollback = self.rollback_tokens + self.extra_retained_tokens
        return InFlight(max_in_flight_tokens // self.batches, self.batches, rollback, self.early)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Most blocks that a request holds at once; vLLM plans and admits by it."""
        flight = self.in_flight(max_in_flight_tokens)
        tokens = flight.batched_tokens * flight.held_batches + 2 * (self.rollback_tokens - 1)
        held: int = super().max_admission_blocks_per_request(tokens, max_model_len)
        return held

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """The one spec of all these caches; vLLM takes AssertionError for an answer."""
        assert all(spec == specs[0] for spec in specs), "caches with different specs"
        return specs[0]

    def is_uniform_with_collection(self, kv_cache_specs: dict[str, KVCacheSpec]) -> bool:
        """Whether caches can share a block table: the same class, block size and window."""
        mine = type(self), self.block_size, self.sliding_window
        return all((type(s), s.block_size, getattr(s, "sliding_window", None)) == mine for s in kv_cache_specs.values())


@dataclass(frozen=True, kw_only=True)
class CompressorStateSpec(WindowSpec):
    """Compressor state with pages in those columns alone that a later step reads.

    Attributes:
        ratio: tokens per entry.
    """

    ratio: int

    @cached_property
    def retention(self) -> Retention:
        rollback = self.rollback_tokens + self.extra_retained_tokens
        return Retention(self.ratio, self.sliding_window // self.ratio, self.block_size, rollback)

    @property
    def prefix_cacheable(self) -> bool:
        """Whether hits need pages of it."""
        return self.retention.hit_columns > 0

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        flight = self.in_flight(max_in_flight_tokens)
        held = self.retention.held_columns(flight.batched_tokens, flight.held_batches)
        return min(held, super().max_admission_blocks_per_request(max_in_flight_tokens, max_model_len))


class WindowManager(SlidingWindowManager):
    """Frees pages on the basis of what is scheduled, where the spec allows it."""

    def __init__(self, kv_cache_spec: WindowSpec, **options: Any) -> None:
        super().__init__(kv_cache_spec, **options)
        self._spec = kv_cache_spec
        self._scheduled: dict[str, int] = {}

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        self._scheduled[request_id] = num_tokens_main_model
        blocks: list[KVCacheBlock] = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        return blocks

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        passed = self._passed(request_id, processed_computed_tokens)
        super().remove_skipped_blocks(request_id, passed, num_prompt_tokens)

    def _passed(self, request_id: str, processed: int) -> int:
        """Tokens that no step to come computes again."""
        if not self._spec.early:
            return processed
        return max(processed, self._scheduled.get(request_id, 0) - (self._spec.rollback_tokens - 1))

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        self._scheduled.pop(request_id, None)
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request_id)
        return blocks


class CompressorStateManager(WindowManager):
    """Gives pages to the columns that `Retention` names; the others are vLLM's null block.

    What is inherited unchanged: the search for hits, and which blocks are put into the prefix cache.
    """

    def __init__(self, kv_cache_spec: CompressorStateSpec, **options: Any) -> None:
        super().__init__(kv_cache_spec, **options)
        self._rule = kv_cache_spec.retention
        # Rows are written before they are read, so new pages need no zeros.
        self._record_new_block_ids = False
        # Columns below this one are freed. vLLM's own loop stops at the first null block, and would leak behind a gap.
        self._retired: dict[str, int] = {}

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return self._rule.retained_from(num_computed_tokens)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Exactly what the three methods that follow take from the pool, or with the cap what a request may hold."""
        held = self.req_to_blocks.get(request_id, ())
        if apply_admission_cap:
            cap = cdiv(num_tokens, self.block_size)
            if self.max_admission_blocks_per_request is not None:
                cap = min(cap, self.max_admission_blocks_per_request)
            return int(max(0, cap - sum(not block.is_null for block in held)))
        covered, taken = len(held), 0
        if request_id not in self.num_cached_block and not held:
            dropped = self._dropped(num_local_computed_tokens, total_computed_tokens)
            taken = self._get_num_evictable_blocks(new_computed_blocks[dropped:])
            covered = max(dropped, len(new_computed_blocks))
            if total_computed_tokens > num_local_computed_tokens:
                loaded = self._loaded(covered, total_computed_tokens)
                taken += sum(loaded)
                covered += len(loaded)
        return taken + sum(self._chunk(covered, num_tokens, num_tokens_main_model))

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        dropped = self._dropped(num_local_computed_tokens, num_local_computed_tokens + num_external_computed_tokens)
        hit = list(new_computed_blocks[dropped:])
        if self.enable_caching:
            self.block_pool.touch([block for block in hit if not block.is_null])
        self.req_to_blocks[request_id].extend([self._null_block] * dropped + hit)
        self.num_cached_block[request_id] = len(self.req_to_blocks[request_id])

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        total = num_local_computed_tokens + num_external_computed_tokens
        self._extend(request_id, self._loaded(len(self.req_to_blocks[request_id]), total))
        self.num_cached_block.setdefault(request_id, 0)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[KVCacheBlock]:
        self._scheduled[request_id] = num_tokens_main_model
        covered = len(self.req_to_blocks[request_id])
        return self._extend(request_id, self._chunk(covered, num_tokens, num_tokens_main_model))

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        blocks = self.req_to_blocks.get(request_id)
        if not blocks:
            return
        retained = self._rule.retained_from(self._passed(request_id, processed_computed_tokens))
        first, end = self._retired.get(request_id, 0), min(retained // self.block_size, len(blocks))
        freed = [column for column in reversed(range(first, end)) if not blocks[column].is_null]
        self.block_pool.free_blocks([blocks[column] for column in freed])
        for column in freed:
            blocks[column] = self._null_block
        self._retired[request_id] = max(first, end)

    def _passed(self, request_id: str, processed: int) -> int:
        # What may be taken back is part of the retention rule.
        return max(processed, self._scheduled.get(request_id, 0)) if self._spec.early else processed

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        self._retired.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    def _dropped(self, local: int, total: int) -> int:
        """Columns at the head of a hit that nobody reads; behind a load, a step may start a token before its end."""
        first = self._rule.first_read(total) if total == local else self._rule.retained_from(total)
        return int(min(first, local) // self.block_size)

    def _loaded(self, covered: int, total: int) -> list[bool]:
        """Which of the columns up to `total` get a page that a KV connector fills."""
        first, end = self._rule.retained_from(total), cdiv(total, self.block_size)
        return [(column + 1) * self.block_size > first for column in range(covered, end)]

    def _chunk(self, covered: int, num_tokens: int, end: int) -> list[bool]:
        """Which of the columns up to `num_tokens` get a page in the chunk that ends at `end`."""
        columns = range(covered, cdiv(num_tokens, self.block_size))
        return [self._rule.needs_page(column, end, self.enable_caching, self.use_eagle) for column in columns]

    def _extend(self, request_id: str, wanted: list[bool]) -> list[KVCacheBlock]:
        fresh = iter(self.block_pool.get_new_blocks(sum(wanted)))
        new = [next(fresh) if one else self._null_block for one in wanted]
        self.req_to_blocks[request_id].extend(new)
        return new


MANAGERS = {WindowSpec: WindowManager, CompressorStateSpec: CompressorStateManager}


def register() -> None:
    """Make vLLM use our managers. Only from the platform's hook: an earlier call would keep vLLM's own specs out."""
    for spec, manager in MANAGERS.items():
        KVCacheSpecRegistry.register(spec, manager, uniform_type_base_spec=spec)


def require_registered(spec: KVCacheSpec) -> None:
    """Check that vLLM will manage a spec of ours with our manager: without it, vLLM silently takes its own.

    Raises:
        RuntimeError: naming the manager that would be used.
    """
    for ours, manager in MANAGERS.items():
        if type(spec) is ours and (found := KVCacheSpecRegistry.get_manager_class(spec)) is not manager:
            raise RuntimeError(
                f"vLLM would manage {ours.__name__} with {found.__name__ if found else None} instead of "
                f"{manager.__name__}, which holds more pages than are planned for: the platform's hook "
                "register_custom_kv_cache_specs was not called"
            )
