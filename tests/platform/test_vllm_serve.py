"""What a user of the real `vllm serve` sees when it refuses to start."""

import subprocess
import sys
from pathlib import Path

import pytest

REFUSED = ["--block-size", "128", "--kv-cache-dtype", "fp8_e5m2", "--attention_config.use_fp4_indexer_cache=True"]


@pytest.fixture(scope="module")
def refused(checkpoint, clean_environment):
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(checkpoint), *REFUSED]
    command += ["--trust-remote-code", "--tokenizer-mode", "deepseek_v4", "--max-model-len", "4096"]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=400)


def test_one_line_each_and_no_traceback(refused):
    errors = [line for line in refused.stderr.splitlines() if line.startswith("dsv4_rocm: error: ")]
    assert len(errors) == 2, refused.stderr
    assert "--block-size must be 256" in errors[0]
    assert "--kv-cache-dtype" in errors[1]
    assert "Traceback" not in refused.stdout + refused.stderr
    assert refused.stderr.rstrip().endswith(errors[-1])


def test_exit_status(refused):
    assert refused.returncode == 1


def test_flag_of_older_recipes_is_translated_with_a_note(refused):
    assert (
        "use_fp4_indexer_cache=True (older recipes) is read as indexer_kv_dtype=mxfp4"
        in refused.stdout + refused.stderr
    )
