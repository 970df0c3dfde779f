"""Reading pasted text, and asking a vLLM that is not there."""

import pytest

from dsv4_rocm.recipes import subject
from dsv4_rocm.recipes.products import product
from dsv4_rocm.recipes.subject import Subject, ask, read_script, split_shell

TEXT = """
# a comment
export A=1 B="x y"
C=2 nohup vllm serve m --flag='{"a": 1}' \\
  --other 3 & vllm serve n   # and another
export A=5; vllm-router --port 3
vllm serve o --json '{"a":
 1}'
"""


def test_a_script_is_read_as_a_shell_would():
    found = read_script(split_shell(TEXT))
    assert found.serves == [
        ({"A": "1", "B": "x y", "C": "2"}, ("m", '--flag={"a": 1}', "--other", "3")),
        ({"A": "1", "B": "x y"}, ("n",)),
        ({"A": "5", "B": "x y"}, ("o", "--json", '{"a":\n 1}')),
    ]
    assert found.router == ("--port", "3")


def test_an_open_quote_is_named():
    with pytest.raises(ValueError, match="a quote is not closed in"):
        split_shell("vllm serve 'm")


FLAGS = {
    "apart": (("--moe-backend", "x"), "x"),
    "together": (("--moe-backend=x",), "x"),
    "underscores": (("--moe_backend", "x"), "x"),
    "no value": (("--moe-backend", "--other"), None),
    "absent": (("--other", "--moe-backends"), None),
}


@pytest.mark.parametrize(("argv", "value"), FLAGS.values(), ids=FLAGS.keys())
def test_flags_are_read_in_every_spelling(argv, value):
    assert Subject("k", ("m", *argv), {}, product("H200")).value("--moe-backend") == value


def test_mappings_are_read_as_json_and_as_dotted_keys():
    words = ("m", "--attention-config", '{"a": 1}', "--attention_config.b=2", "--attention-config.c", "3")
    assert Subject("k", words, {}, product("H200")).json("--attention-config") == {"a": 1, "b": "2", "c": "3"}


def test_a_vllm_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(subject, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"vLLM is not installed, .*pip install 'vllm>=0.32,<0.34'"):
        ask([Subject("k", ("m",), {}, product("H200"))])


def test_a_source_without_vllm_is_refused_rather_than_passed_over(tmp_path):
    with pytest.raises(ValueError, match="holds no package vllm"):
        ask([Subject("k", ("m",), {}, product("H200"))], tmp_path)


def test_another_vllm_is_the_one_that_is_asked(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('this vLLM was asked')")
    with pytest.raises(RuntimeError, match="this vLLM was asked"):
        ask([Subject("k", ("m",), {}, product("H200"))], tmp_path)


def test_a_vllm_that_does_not_answer_is_named():
    with pytest.raises(RuntimeError, match="within 0 s"):
        ask([Subject("k", ("m",), {}, product("H200"))], timeout=0.01)
