"""vLLM's scheduler and KV cache managers with a worker that only remembers what each row of each page holds.

Run as a program, so that vLLM stays out of the test process. The worker builds its block tables from what the
scheduler sends, marks every row it stores with a hash of the tokens up to it, and checks before each step that every
row the step reads lies on a page and has the right mark: through hits, preemption, drafts taken back and reuse.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from dsv4_rocm.cache import managers
from dsv4_rocm.cache.layout import Encoding, swa_layout
from dsv4_rocm.cache.pool import StatePages, make_pool
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.cache.specs import CacheEncodings, model_caches, to_vllm
from dsv4_rocm.model_spec import ModelSpec
from dsv4_rocm.testing import vllm_planner
from dsv4_rocm.testing.tiny_config import DEMO, config_json
from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer

BLOCK = 256
WINDOW = 128
LENGTH = 10_240
MODULUS = (1 << 61) - 1
CUTS = [0, 200, 255, 256, 257, 512, 1000, 1024, 2048, 3001, 4096]  # shared prefixes, around multiples of 256
TAILS = [1, 3, 127, 128, 129, 256, 700, 1500]


@dataclass(frozen=True)
class Case:
    """One run of a server.

    Attributes:
        drafts: of a step.
        is_async: async scheduling.
        early: pages are freed when the next step is scheduled.
        batched: `--max-num-batched-tokens`.
        share: the pool, in requests of full length as vLLM charges them: few enough for preemptions, or plenty.
        retention: `--prefix-cache-retention-interval`.
        longest: tokens of a prompt at most.
        seed: of prompts, arrivals and acceptance.
        requests: how many.
        rollback: what the specs are told instead of what drafts may take back.
    """

    drafts: int
    is_async: bool
    early: bool
    batched: int
    share: float
    retention: int | None
    longest: int
    seed: int
    requests: int = 12
    rollback: int | None = None


def cases():
    return st.builds(
        Case,
        drafts=st.sampled_from([0, 3]),
        is_async=st.booleans(),
        early=st.booleans(),
        batched=st.sampled_from([256, 500, 1024, 4096]),
        share=st.sampled_from([1.1, 2, 20]),
        retention=st.sampled_from([0, 256, 512, None]),
        longest=st.sampled_from([300, 9_000]),
        seed=st.integers(0, 1 << 16),
    )


def write_model(directory):
    config = config_json(replace(DEMO, max_position_embeddings=1 << 20), "bfloat16")
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory, 2048)


def engine_config(directory, case):
    arguments = {"trust_remote_code": True, "tokenizer_mode": "deepseek_v4", "kv_cache_dtype": "fp8", "block_size": 256}
    arguments |= {"max_model_len": LENGTH, "max_num_seqs": 8, "max_num_batched_tokens": case.batched}
    arguments |= {"enforce_eager": True, "async_scheduling": case.is_async, "enable_prefix_caching": True}
    if case.drafts:
        arguments["speculative_config"] = {"method": "mtp", "num_speculative_tokens": case.drafts}
    config = EngineArgs(
        model=directory, prefix_cache_retention_interval=case.retention, **arguments
    ).create_engine_config()
    # The CPU platform changes these, but nothing here computes.
    config.scheduler_config.max_num_batched_tokens = case.batched
    config.scheduler_config.async_scheduling = case.is_async
    config.cache_config.enable_prefix_caching = config.scheduler_config.enable_chunked_prefill = True
    config.cache_config.kv_cache_layout = "BLHNC"
    return config


def make_scheduler(directory, case):
    config = engine_config(directory, case)
    batches = config.max_concurrent_batches
    assert batches == 1 + case.is_async
    rollback = 1 + case.drafts * batches if case.rollback is None else case.rollback
    flight = InFlight(case.batched, batches, rollback, case.early)
    layouts = model_caches(ModelSpec.from_config(config.model_config.hf_config), CacheEncodings(*[Encoding.FP8] * 2))
    if case.drafts:
        layouts[f"model.layers.{len(DEMO.compress_ratios)}.attn.swa"] = swa_layout(Encoding.FP8)
    specs = {name: to_vllm(layout, flight) for name, layout in layouts.items()}
    charge = InFlight(case.batched, batches, 1 + case.drafts * batches, case.early)
    pool = make_pool(layouts)
    blocks = 2 + int(case.share * pool.request_blocks(LENGTH, charge, StatePages.GAPPED))
    config.cache_config.num_gpu_blocks_override = blocks
    with set_current_vllm_config(config):
        planned = vllm_planner.plan(config, specs, blocks * pool.block_bytes)
        ours = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
        block_size, hash_block_size = kv_cache_utils.resolve_kv_cache_block_sizes(ours, config)
        if hasattr(ours, "hash_block_size"):
            ours.hash_block_size = hash_block_size
        config.cache_config.num_gpu_blocks = planned.num_blocks
        scheduler_class = AsyncScheduler if case.is_async else Scheduler
        scheduler = scheduler_class(
            config,
            ours,
            StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
    assert block_size == BLOCK
    hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    kv_cache_utils.init_none_hash(hash_function)
    return scheduler, kv_cache_utils.get_request_block_hasher(hash_block_size, hash_function)


class Text:
    """Tokens of a request and, for each, the hash of all up to it."""

    def __init__(self, tokens):
        self.tokens, self.marks = [], []
        self.extend(tokens)

    def extend(self, tokens):
        mark = self.marks[-1] if self.marks else 7
        for token in tokens:
            mark = (mark * 1_000_003 + token + 1) % MODULUS
            self.tokens.append(token)
            self.marks.append(mark)

    def marks_with(self, drafts):
        """Marks as if drafts followed."""
        more = Text([])
        more.marks = [self.marks[-1]]
        more.extend(drafts)
        return np.array(self.marks + more.marks[1:], dtype=np.int64)


class Worker:
    """Block tables, and the mark of every row."""

    def __init__(self, scheduler):
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.kinds = [type(managers_spec(group.kv_cache_spec)).__name__ for group in groups]
        self.specs = [managers_spec(group.kv_cache_spec) for group in groups]
        self.pages, self.tables, self.positions, self.count = {}, {}, {}, Counter()

    def update(self, output):
        for new in output.scheduled_new_reqs:
            self._start(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for request, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request in cached.resumed_req_ids:
                self._start(request, blocks, computed)
            elif blocks is not None:
                for table, more in zip(self.tables[request], blocks, strict=True):
                    table.extend(more)

    def _start(self, request, blocks, computed):
        self.tables[request], self.positions[request] = [list(table) for table in blocks], computed
        self.count["hits"] += computed > 0

    def store(self, request, marks, start, end):
        """All groups keep the rows of this step that have a page; windows need one for each."""
        for group, spec in enumerate(self.specs):
            size = spec.block_size
            for column in range(start // size, -(-end // size)):
                block = self.tables[request][group][column]
                first, last = max(start, column * size), min(end, (column + 1) * size)
                if block == 0:
                    assert self.kinds[group] == "CompressorStateSpec", f"{request}: no page for row {first}"
                    self.count["rows not stored"] += last - first
                    continue
                page = self.pages.setdefault((group, block), np.zeros(size, np.int64))
                page[first - column * size : last - column * size] = marks[first:last]
                self.count["rows stored"] += last - first

    def read(self, request, marks, start, end):
        """What the step reads: windows of all its tokens, and state rows before its first token."""
        for group, spec in enumerate(self.specs):
            size, state = spec.block_size, self.kinds[group] == "CompressorStateSpec"
            if self.kinds[group] == "MLAAttentionSpec":
                first, last = 0, end
            elif state:
                first, last = spec.retention.first_read(start), start
            else:
                first, last = max(0, start - WINDOW + 1), end
            for column in range(first // size, -(-last // size)):
                block = self.tables[request][group][column]
                low, high = max(first, column * size), min(last, (column + 1) * size)
                assert block != 0, f"{request}: group {group} row {low} needed at {start} has no page"
                page = self.pages[group, block]
                same = page[low - column * size : high - column * size] == marks[low:high]
                assert same.all(), f"{request}: group {group} row {low} at {start} is another's in block {block}"
                self.count["rows read"] += high - low


def managers_spec(spec):
    return getattr(spec, "first_spec", spec)


def prompts(case, rng):
    shared = [[rng.randrange(10, 2000) for _ in range(6000)] for _ in range(3)]
    made = []
    for _ in range(case.requests):
        if made and rng.random() < 0.3:
            prompt = list(rng.choice(made)[0])
            prompt += [rng.randrange(10, 2000) for _ in range(rng.choice([0, 0, 1, 255, 300]))]
        else:
            prompt = rng.choice(shared)[: rng.choice(CUTS)]
            prompt = prompt + [rng.randrange(10, 2000) for _ in range(rng.choice(TAILS))]
        made.append((prompt[: case.longest], rng.choice([1, 5, 40, 150, 600])))
    return made


class Server:
    """One run: requests arrive, are computed, drafts are accepted or not, everything ends."""

    def __init__(self, directory, case):
        self.case, self.rng = case, random.Random(case.seed)
        self.scheduler, self.hasher = make_scheduler(directory, case)
        self.worker, self.texts, self.pending = Worker(self.scheduler), {}, []
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers

    def run(self):
        free = self.pool.get_num_free_blocks()
        queue = list(enumerate(prompts(self.case, self.rng)))
        while queue or self.pending or self.scheduler.has_unfinished_requests():
            while queue and self.rng.random() < 0.4:
                self._add(*queue.pop(0))
            self._step()
        assert self.pool.get_num_free_blocks() == free, "pages were lost"
        assert all(not any(manager.req_to_blocks.values()) for manager in self.managers)
        return self.worker.count

    def _add(self, number, made):
        prompt, length = made
        name = f"r{number}"
        params = SamplingParams(max_tokens=length, ignore_eos=True, temperature=0)
        self.texts[name] = Text(prompt)
        self.scheduler.add_request(Request(name, list(prompt), params, None, block_hasher=self.hasher))

    def _preempt(self):
        """As the scheduler does it when pages run out, which happens seldom here."""
        self.scheduler._preempt_request(self.scheduler.running.pop(), 0.0)
        self.worker.count["preemptions"] += 1

    def _step(self):
        if self.scheduler.running and self.rng.random() < 0.02:
            self._preempt()
        output = self.scheduler.schedule()
        self.worker.count["steps"] += 1
        assert self.worker.count["steps"] < 20_000, "the scheduler makes no progress"
        self.worker.count["preemptions"] += len(output.preempted_req_ids or ())
        self.worker.update(output)
        self._check_held()
        sampled = self._compute(output)
        names = list(output.num_scheduled_tokens)
        index = {name: i for i, name in enumerate(names)}
        done = ModelRunnerOutput(
            req_ids=names, req_id_to_index=index, sampled_token_ids=[sampled[name] for name in names]
        )
        self.pending.append((output, done))
        while self.pending and (len(self.pending) > self.case.is_async or not names):
            self._settle(*self.pending.pop(0))

    def _check_held(self):
        for manager in self.managers:
            cap = manager.max_admission_blocks_per_request
            if cap is not None:
                held = max((sum(not b.is_null for b in blocks) for blocks in manager.req_to_blocks.values()), default=0)
                assert held <= cap, f"{held} pages held, {cap} charged in {manager.kv_cache_spec}"

    def _compute(self, output):
        """A layer: store the rows of all requests, then read."""
        work = []
        for name, count in output.num_scheduled_tokens.items():
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            drafts = [self.rng.randrange(10, 2000) if token == -1 else token for token in drafts]
            start = self.worker.positions[name]
            work.append((name, self.texts[name].marks_with(drafts), start, start + count, drafts))
        self.rng.shuffle(work)
        for name, marks, start, end, _ in work:
            self.worker.store(name, marks, start, end)
        for name, marks, start, end, _ in work:
            self.worker.read(name, marks, start, end)
        return {name: self._sample(name, end, drafts) for name, _, _, end, drafts in work}

    def _sample(self, name, end, drafts):
        text = self.texts[name]
        if end < len(text.tokens):
            self.worker.positions[name] = end
            return []
        accepted = self.rng.randint(0, len(drafts))
        self.worker.count["drafts taken back"] += len(drafts) - accepted
        new = [*drafts[:accepted], self.rng.randrange(10, 2000)]
        self.worker.positions[name] = end - (len(drafts) - accepted)
        text.extend(new)
        return new

    def _settle(self, output, done):
        self.scheduler.update_from_output(output, done)
        if self.case.drafts and not self.case.is_async:
            alive = [
                name
                for name, new in zip(done.req_ids, done.sampled_token_ids, strict=True)
                if new and name in self.scheduler.requests
            ]
            tokens = [[self.rng.randrange(10, 2000) for _ in range(self.case.drafts)] for _ in alive]
            self.scheduler.update_draft_token_ids(DraftTokenIds(alive, tokens))


def main(examples, given_cases):
    """Run the given cases, then as many drawn ones; totals, and the message of each given case that failed."""
    KVCacheSpecRegistry.check_kv_cache_spec_registry({})
    managers.register()
    total, failures = Counter(), []
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        for case in given_cases:
            try:
                total.update(Server(directory, Case(**case)).run())
                failures.append(None)
            except AssertionError as error:
                failures.append(str(error))

        @settings(
            max_examples=max(examples, 1),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def any_case(case):
            total.update(Server(directory, case).run())

        if examples:
            any_case()
    return {"total": total, "failures": failures}


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    wanted = json.load(sys.stdin)
    json.dump(main(wanted["examples"], wanted["cases"]), stdout)
