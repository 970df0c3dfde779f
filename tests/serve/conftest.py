"""One server on the quantized tiny checkpoint for all tests that only send requests."""

import pytest

from dsv4_rocm.demo import SERVE_FLAGS, SERVED_NAME
from dsv4_rocm.testing.client import Client
from dsv4_rocm.testing.server import VllmServer
from dsv4_rocm.testing.tiny_checkpoint import DEMO, write_checkpoint

FLAGS = [*SERVE_FLAGS.split(), "--served-model-name", SERVED_NAME]
QUICK = {"TORCHDYNAMO_DISABLE": "1"}  # the first request with logprobs would compile for 20 s


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("demo_server") / "checkpoint", DEMO, "fp8")


@pytest.fixture(scope="session")
def start(checkpoint):
    """Makes servers that are alike but for their environment."""
    return lambda log, **environment: VllmServer(checkpoint, FLAGS, log=log, environment=QUICK | environment)


@pytest.fixture(scope="session")
def server(start, checkpoint):
    with start(checkpoint.parent / "server.log") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    return Client(server.url)
