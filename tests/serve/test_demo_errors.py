"""A broken checkpoint ends `vllm serve` with one clear line, a failing status and no traceback."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dsv4_rocm.demo import SERVE_FLAGS
from dsv4_rocm.testing.server import failed_start
from dsv4_rocm.testing.tiny_checkpoint import DEMO, write_checkpoint

pytestmark = pytest.mark.engine

SHARD = "model-00002-of-00002.safetensors"


def truncate_shard(directory: Path) -> None:
    path = directory / SHARD
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def remove_tokenizer(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()


def remove_compress_ratios(directory: Path) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    del config["compress_ratios"]
    path.write_text(json.dumps(config))


def add_unknown_tensor(directory: Path) -> None:
    tensors = load_file(directory / SHARD)
    tensors["layers.5.attn.wq_c.weight"] = tensors["layers.5.attn.kv_norm.weight"].clone()
    save_file(tensors, directory / SHARD, metadata={"format": "pt"})
    index = directory / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["layers.5.attn.wq_c.weight"] = SHARD
    index.write_text(json.dumps(content))


CASES = {  # what is broken, and what the one line must say: the thing and the fix
    "truncated-shard": (truncate_shard, (SHARD, "truncated", "download it again")),
    "missing-tokenizer": (remove_tokenizer, ("tokenizer.json", "--tokenizer")),
    "no-compress-ratios": (remove_compress_ratios, ("compress_ratios", "config.json")),
    "unknown-tensor": (add_unknown_tensor, (SHARD, "layers.5.attn.wq_c.weight", "config.json")),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """Every case run once, two at a time: each spends some ten seconds on importing vLLM."""
    root = tmp_path_factory.mktemp("errors")
    whole = write_checkpoint(root / "whole", DEMO, "fp8")

    def start(name: str) -> subprocess.CompletedProcess[str]:
        directory = root / name
        shutil.copytree(whole, directory)
        CASES[name][0](directory)
        return failed_start(directory, SERVE_FLAGS.split())

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(start, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_start_ends_with_one_clear_line(failures, name):
    ended = failures[name]
    assert ended.returncode not in (0, None), ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("dsv4_rocm: error: ")]
    assert len(lines) == 1, ended.stderr[-3000:]
    for part in CASES[name][1]:
        assert part in lines[0]
    assert "Traceback" not in ended.stdout + ended.stderr
