"""Checkpoints, good and spoilt, and the processes that look at them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


def environment(**extra):
    """Offline, no usage statistics, and none of the developer's DSV4_ROCM_* or VLLM_* settings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DSV4_ROCM_", "VLLM_"))}
    clean |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1"}
    return clean | {"VLLM_CPU_KVCACHE_SPACE": "1"} | extra


def run_driver(name, payload, *arguments, timeout=600, **extra):
    """Run a script of this directory on a JSON payload and read its JSON answer."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(
        command, input=json.dumps(payload), env=environment(**extra), capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def drive():
    return run_driver


@pytest.fixture(scope="session")
def clean_environment():
    return environment


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
    from dsv4_rocm.testing.tiny_config import DEMO

    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "good", DEMO, "fp8")


@pytest.fixture(scope="session")
def spoil(checkpoint):
    """Make a copy of the checkpoint (hard links) with some files left out or replaced."""

    def make(name, without=(), config=None):
        target = checkpoint.parent / name
        target.mkdir()
        for file in checkpoint.iterdir():
            if file.name not in without:
                os.link(file, target / file.name)
        if config is not None:
            values = json.loads((checkpoint / "config.json").read_text())
            config(values)
            (target / "config.json").unlink()
            (target / "config.json").write_text(json.dumps(values))
        return target

    return make
