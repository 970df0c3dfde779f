"""Shared by the tests of the testing helpers: one thread, one set of weights, one oracle."""

import pytest
import torch

from dsv4_rocm.testing import transformers_oracle
from dsv4_rocm.testing.tiny_checkpoint import ORACLE
from dsv4_rocm.testing.tiny_weights import draw_weights


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The tensors are small: a second thread costs more in waiting (6 s against 0.4 s for 390 tokens) than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def weights():
    return draw_weights(ORACLE)


@pytest.fixture(scope="session")
def oracle(weights):
    return transformers_oracle.build(ORACLE, weights)


@pytest.fixture(scope="session")
def ids():
    return torch.randint(3, ORACLE.vocab_size, (390,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def expected(oracle, ids):
    return transformers_oracle.logits(oracle, ids)  # [390, vocab]
