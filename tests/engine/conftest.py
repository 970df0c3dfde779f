"""Checkpoints that the engine tests serve."""

from pathlib import Path

import pytest

from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import DEMO, ORACLE


@pytest.fixture(scope="session")
def oracle_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain fp32, every kind of layer; top-k 32, so that selection bites from 128 tokens on."""
    directory = tmp_path_factory.mktemp("oracle")
    write_checkpoint(directory, ORACLE, weights="float32")
    return directory


@pytest.fixture(scope="session")
def quantized_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FP8 linears and FP4 experts in the real on-disk formats."""
    directory = tmp_path_factory.mktemp("quantized")
    write_checkpoint(directory, DEMO, weights="fp8")
    return directory
