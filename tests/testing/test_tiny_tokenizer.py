"""The tiny tokenizer: exact vocabulary, DeepSeek's special tokens, the same bytes in every process."""

import importlib.util
import os
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from dsv4_rocm.testing.tiny_tokenizer import SPECIAL_TOKENS, TEXT_TOKENS, write_tokenizer

WRITE = """
import pathlib, sys
from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer
write_tokenizer(pathlib.Path(sys.argv[1]), 2048)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    target = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(target, 2048)
    return target


@pytest.fixture(scope="module")
def tokenizer(directory):
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_another_process_writes_the_same_bytes(directory, tmp_path):
    """Hash seeds and thread counts differ between machines."""
    env = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], env=env, check=True)
    for path in directory.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_special_tokens(tokenizer):
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    for token in SPECIAL_TOKENS + TEXT_TOKENS:
        assert tokenizer.encode(f"a{token}b").tokens == ["a", token, "b"]


def test_parsers_see_the_text_tokens_and_not_the_special_ones(tokenizer):
    text = "<think>why</think><｜DSML｜invoke><｜end▁of▁sentence｜>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == "<think>why</think><｜DSML｜invoke>"


@pytest.mark.parametrize("text", ["The weather in Paris: 21 degrees.", "Ünï\n\t€ 漢字 🙂", '{"a": [1, 2.5e3]}', ""])
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_vocabulary_is_exact_and_learned(tokenizer):
    assert tokenizer.get_vocab_size() == 2048
    assert sorted(tokenizer.get_vocab().values()) == list(range(2048))
    assert not [token for token in tokenizer.get_vocab() if "place▁holder" in token]
    assert len(tokenizer.encode("the weather in the morning").ids) <= 6


def test_large_vocabulary_is_filled_up(tmp_path):
    """Every id the model can sample must decode."""
    write_tokenizer(tmp_path, 20_000)
    large = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert large.get_vocab_size() == 20_000
    assert large.decode([19_000]) != ""


def test_too_small_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must hold at least 274 tokens, got 200"):
        write_tokenizer(tmp_path, 200)


def test_vllm_encodes_chats_with_tokens_we_have(tokenizer):
    """Every special token of vLLM's DeepSeek-V4 encoder is one token here."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        pytest.skip("vLLM is not installed")
    path = os.path.join(os.path.dirname(found.origin), "tokenizers", "deepseek_v4_encoding.py")
    spec = importlib.util.spec_from_file_location("deepseek_v4_encoding", path)
    encoding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoding)
    names = ["bos_token", "eos_token", "thinking_start_token", "thinking_end_token", "dsml_token"]
    names += ["USER_SP_TOKEN", "ASSISTANT_SP_TOKEN", "LATEST_REMINDER_SP_TOKEN"]
    for token in [getattr(encoding, name) for name in names] + list(encoding.DS_TASK_SP_TOKENS.values()):
        assert tokenizer.encode(token).tokens == [token]
