"""The blocks that a prefill server hands to a decode server, as connectors pair them, for many lengths of a prompt.

Run as a program. Connectors pair the last columns of both tables, clipped to the window: every column that the decoder
gave a page must have one on the prefill side, and computing the last token again must find its state rows.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from scheduler_simulation import Case, make_scheduler, managers_spec, write_model
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from dsv4_rocm.cache import managers

CASE = Case(
    drafts=0, is_async=False, early=False, batched=1024, share=20, retention=0, longest=9_000, seed=0, requests=0
)
CHUNK = 700


class Side:
    """One server's KV cache manager."""

    def __init__(self, directory):
        scheduler, self.hasher = make_scheduler(directory, CASE)
        self.manager: KVCacheManager = scheduler.kv_cache_manager
        specs = [managers_spec(group.kv_cache_spec) for group in scheduler.kv_cache_config.kv_cache_groups]
        self.states = {i: spec for i, spec in enumerate(specs) if type(spec) is managers.CompressorStateSpec}

    def request(self, name, tokens):
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        return Request(name, list(tokens), params, None, block_hasher=self.hasher)


def prefill(side, name, tokens):
    request, length = side.request(name, tokens), len(tokens)
    for first in range(0, length, CHUNK):
        count = min(CHUNK, length - first)
        assert side.manager.allocate_slots(request, count) is not None
        request.num_computed_tokens = first + count
    side.manager.remove_skipped_blocks(name, length)  # as before a connector gets the table
    return request, side.manager.get_block_ids(name)


def decode(side, name, tokens, local):
    """Block tables of a request of which `local` tokens are in this side's cache, and the rest comes from the other."""
    blocks, hit = None, 0
    if local:
        warm = side.request(f"{name}-warm", tokens[: local + 1])
        assert side.manager.allocate_slots(warm, local + 1) is not None
        warm.num_computed_tokens = local + 1
        side.manager.free(warm)
    request = side.request(name, tokens)
    if local:
        blocks, hit = side.manager.get_computed_blocks(request)[:2]
        assert hit == local
    loaded = len(tokens) - hit
    arguments = {"num_external_computed_tokens": loaded, "delay_cache_blocks": True}
    assert side.manager.allocate_slots(request, 0, hit, blocks, **arguments) is not None
    return request, side.manager.get_block_ids(name)


def check(spec, length, given, taken, count):
    size = spec.block_size
    clip = -(-spec.sliding_window // size) + 1
    assert len(given) == len(taken)
    for a, b in zip(given[-clip:], taken[-clip:], strict=True):
        count["pages"] += b != 0
        assert a != 0 or b == 0, f"{length} tokens: the decoder has a page for a column that was not computed"
    for row in range(spec.retention.first_read(max(0, length - 1)), length - 1):
        column = row // size
        assert given[column] != 0, f"{length} tokens: row {row} is not there"
        assert taken[column] != 0, f"{length} tokens: row {row} has no page"
        assert len(taken) - column <= clip, f"{length} tokens: row {row} is not handed over"


def main(lengths):
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    managers.register()
    count = Counter()
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        producer, decoder = Side(directory), Side(directory)
        for length in lengths:
            tokens = [(i * 7 + length * 13) % 1999 + 1 for i in range(length)]
            held, given = prefill(producer, f"p{length}", tokens)
            for local in {0, max(0, (length - 1) // 256 - 1) * 256}:
                request, taken = decode(decoder, f"d{length}-{local}", tokens, local)
                for group, spec in decoder.states.items():
                    check(spec, length, given[group], taken[group], count)
                decoder.manager.free(request)
            producer.manager.free(held)
    return count


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    json.dump(main(json.load(sys.stdin)), stdout)
