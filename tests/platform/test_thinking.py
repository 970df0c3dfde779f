"""What vLLM's DeepSeek-V4 tokenizer makes of the thinking switches (F-10): on unless something says otherwise."""

import pytest

MESSAGES = [{"role": "user", "content": "1+1=?"}]


@pytest.fixture(scope="module")
def prompt(checkpoint):
    from vllm.tokenizers.deepseek_v4 import DeepseekV4Tokenizer

    tokenizer = DeepseekV4Tokenizer.from_pretrained(str(checkpoint))
    return lambda **switches: tokenizer.apply_chat_template(MESSAGES, tokenize=False, **switches)


@pytest.mark.parametrize(
    ("switches", "ending"),
    [
        ({}, "<think>"),
        ({"thinking": True}, "<think>"),
        ({"enable_thinking": True}, "<think>"),
        ({"thinking": True, "reasoning_effort": "max"}, "<think>"),
        ({"thinking": False}, "</think>"),
        ({"enable_thinking": False}, "</think>"),
        ({"reasoning_effort": "none"}, "</think>"),
    ],
    ids=["default", "thinking", "enable_thinking", "max", "off", "enable_thinking-off", "effort-none"],
)
def test_thinking_switch(prompt, switches, ending):
    assert prompt(**switches).endswith(ending)


def test_default_is_think_high(prompt):
    assert prompt() == prompt(thinking=True, reasoning_effort="high")
    assert prompt() != prompt(thinking=True, reasoning_effort="max")
