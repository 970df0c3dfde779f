"""One real server on the quantized tiny checkpoint: every kind of request, aborts, bursts, cold and warm prefixes."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsv4_rocm.demo import QUESTION, SERVED_NAME, THINK_MODES, WEATHER_TOOL
from dsv4_rocm.testing.client import RequestFailed
from dsv4_rocm.testing.server_log import blocks_of, groups_of, lines_of, ops_of

pytestmark = pytest.mark.engine

PROMPT = "The weather in the morning"


def complete(client, prompt, tokens=16, **changes):
    body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "return_token_ids": True}
    return client.post("/v1/completions", body | changes)


def chat(client, template, tokens=24, **changes):
    body = {"model": SERVED_NAME, "messages": QUESTION, "max_tokens": tokens, "temperature": 0}
    return client.post("/v1/chat/completions", body | {"chat_template_kwargs": template} | changes)


def metric(client, name):
    values = [float(line.rsplit(" ", 1)[1]) for line in client.text("/metrics").splitlines() if line.startswith(name)]
    return sum(values)


def token_ids(answer):
    return answer["choices"][0]["token_ids"]


def prompt_of(length, seed):
    """Token ids that no other test sends: no prefix in common."""
    return [3 + (seed * 7919 + position * position * 31 + position) % 2000 for position in range(length)]


def test_our_plugin_serves(server, client):
    log = server.log_text()
    assert lines_of(log, "serve plan: ") == ["fp8 key rows, fp8 index rows, 256-token blocks"]
    assert {choice.split()[0] for choice in ops_of(log).values()} == {"reference"}
    assert len(ops_of(log)) == 6
    assert groups_of(log) == (64, 64, 64, 256, 4, 8)
    assert blocks_of(client) == 11_229  # 1 GiB / 95,616 B: 22 SWA and c4a pages would not fit a wrong page size


def test_completion_is_reproducible(client):
    first = complete(client, PROMPT, logprobs=3)
    assert first["usage"]["completion_tokens"] == 16
    assert token_ids(complete(client, PROMPT)) == token_ids(first)
    logprobs = first["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [max(top.values()) for top in logprobs["top_logprobs"]]  # greedy


def test_sampling_follows_its_seed(client):
    one, again, other = (complete(client, PROMPT, temperature=1, seed=seed) for seed in (1, 1, 2))
    assert token_ids(one) == token_ids(again) != token_ids(other)


def test_think_modes(client):
    """Non-think answers in content, the other two in reasoning, each with a prompt of its own; High is the default."""
    answers = {name: chat(client, template) for name, template in THINK_MODES.items()} | {"default": chat(client, {})}
    message = {name: answer["choices"][0]["message"] for name, answer in answers.items()}
    assert message["Non-think"]["content"]
    assert not message["Non-think"]["reasoning"]
    for name in ("Think High", "Think Max"):
        assert message[name]["reasoning"]
        assert not message[name]["content"]
    prompts = {name: answer["usage"]["prompt_tokens"] for name, answer in answers.items()}
    assert prompts["Non-think"] < prompts["Think High"] < prompts["Think Max"]
    assert prompts["default"] == prompts["Think High"]
    assert message["default"] == message["Think High"]


def test_required_tool_call(client):
    answer = chat(client, {"thinking": False}, tokens=256, tools=[WEATHER_TOOL], tool_choice="required")
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Tokyo")


def test_stream_equals_the_whole_answer(client):
    body = {"model": SERVED_NAME, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    with client.stream("/v1/completions", body) as events:
        pieces = [event["choices"][0]["text"] for event in events if event["choices"]]
    assert len(pieces) > 12
    assert "".join(pieces) == complete(client, "Once upon a time", 24)["choices"][0]["text"]


def test_abort_in_mid_stream_frees_the_server(client, server):
    body = {"model": SERVED_NAME, "prompt": prompt_of(300, 1), "max_tokens": 3000, "ignore_eos": True}
    with client.stream("/v1/completions", body) as events:
        assert next(events)["choices"][0]["text"] is not None
        assert metric(client, "vllm:num_requests_running") == 1
    deadline = time.monotonic() + 20
    while metric(client, "vllm:num_requests_running") > 0:
        assert time.monotonic() < deadline, "the aborted request still runs"
        time.sleep(0.2)
    assert server.running
    assert len(token_ids(complete(client, prompt_of(300, 1), 4))) == 4


def first_logprobs(answer):
    return answer["choices"][0]["logprobs"]["top_logprobs"][0]


def test_64_requests_at_once(client):
    """All answer, and a neighbour in the batch does not leak: alone, the first token has the same candidates.

    Rounding of bf16 differs with the shape of the batch (some 0.01); another request's keys would move it by about 1.
    """
    prompts = [prompt_of(8 + number % 20, 100 + number) for number in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda prompt: complete(client, prompt, 8, ignore_eos=True, logprobs=5), prompts))
    assert [len(token_ids(answer)) for answer in answers] == [8] * 64
    for prompt, answer in zip(prompts[:8], answers[:8], strict=True):
        together, alone = first_logprobs(answer), first_logprobs(complete(client, prompt, 1, logprobs=5))
        common = together.keys() & alone.keys()
        assert len(common) >= 4
        assert max(abs(together[token] - alone[token]) for token in common) < 0.1


@pytest.mark.parametrize(("length", "hit"), [(256, 0), (257, 256), (300, 256), (600, 512)])
def test_greedy_output_is_the_same_cold_and_warm(client, length, hit):
    """600 tokens: 150 c4a entries, of which the indexer keeps 32, and 4 c128a entries."""
    prompt = prompt_of(length, length)
    cold = complete(client, prompt, 24, ignore_eos=True, logprobs=1)
    before = metric(client, "vllm:prefix_cache_hits_total")
    warm = complete(client, prompt, 24, ignore_eos=True, logprobs=1)
    assert metric(client, "vllm:prefix_cache_hits_total") - before == hit
    assert token_ids(warm) == token_ids(cold)


def test_too_long_a_request_is_refused_and_the_server_lives(client):
    with pytest.raises(RequestFailed, match=r"answered 400: .*4096"):
        complete(client, prompt_of(4200, 5))
    assert token_ids(complete(client, PROMPT, 2))
