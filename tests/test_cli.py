"""The `dsv4-rocm` command as a user types it: what it writes, what it refuses, and in how many lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4_rocm.cli import app

COMMAND = Path(sys.executable).parent / "dsv4-rocm"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def test_tiny_writes_a_complete_checkpoint(tmp_path):
    target = tmp_path / "new" / "tiny"
    done = run("tiny", target, "--layers", "0,4", "--experts", 4, "--index-topk", 8, "--seed", 3)
    assert done.exit_code == 0, done.output
    assert "2 layers, fp8 weights" in done.output
    assert {path.name for path in target.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    config = config_of(target)
    assert config["compress_ratios"] == [0, 4, 0]
    assert (config["n_routed_experts"], config["index_topk"], config["num_hash_layers"]) == (4, 8, 2)
    assert config["expert_dtype"] == "fp4"


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "fp8-experts"])
def test_tiny_weights(tmp_path, weights):
    assert run("tiny", tmp_path, "--layers", "0", "--weights", weights).exit_code == 0
    config = config_of(tmp_path)
    assert config["torch_dtype"] == ("float32" if weights == "float32" else "bfloat16")
    assert config.get("expert_dtype") == ("fp8" if weights == "fp8-experts" else None)


def test_tiny_starts_from_a_preset(tmp_path):
    assert run("tiny", tmp_path, "--preset", "oracle", "--weights", "float32").exit_code == 0
    assert config_of(tmp_path)["compress_ratios"] == [0, 4, 128, 4, 128, 0, 0]


def test_tiny_keeps_what_is_there_unless_forced(tmp_path):
    (tmp_path / "config.json").write_text("precious")
    refused = run("tiny", tmp_path, "--layers", "0")
    assert refused.exit_code == 1
    assert refused.stderr == f"dsv4-rocm: {tmp_path} is not empty; choose another directory or add --force\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "precious"
    assert run("tiny", tmp_path, "--layers", "0", "--force").exit_code == 0
    assert config_of(tmp_path)["model_type"] == "deepseek_v4"


REFUSED = {
    "ratio": (["--layers", "0,8"], "each compress ratio must be 0, 4 or 128, got [0, 8]"),
    "not a number": (["--layers", "0,x"], 'expected compress ratios like "0,0,4,128", got "0,x"'),
    "experts": (["--experts", "2"], "must be at least the 3 a token uses, got 2"),
    "expert width": (["--expert-width", "100"], "must be a multiple of 128 for FP8, got 100"),
    "vocabulary": (["--vocab", "200"], "must hold at least 274 tokens, got 200"),
    "shards": (["--shards", "0"], "must be between 1 and the"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_tiny_refuses_in_one_line(tmp_path, arguments, message):
    done = run("tiny", tmp_path / "new", *arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())


def test_directory_that_is_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    done = run("tiny", tmp_path / "file")
    assert done.exit_code == 1
    assert "file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_installed_command_fails_without_a_traceback(tmp_path):
    done = subprocess.run([COMMAND, "tiny", tmp_path, "--layers", "3"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("dsv4-rocm: layers: ")
    assert "Traceback" not in done.stderr


def test_help_is_quick():
    """Neither torch nor vLLM is imported to print it."""
    code = "import sys; from dsv4_rocm.cli import app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "typer" in loaded
    assert not {"torch", "vllm", "transformers", "tokenizers", "safetensors"} & set(loaded)
    assert all(name in run("--help").output for name in ("tiny", "demo", "doctor"))
