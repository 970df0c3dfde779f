"""vLLM's mHC ops, as we call them, against the formula in plain torch."""

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.model.hyper_connections import FusedHyperConnection, HyperConnection
from dsv4_rocm.model_spec import ModelSpec
from dsv4_rocm.testing.tiny_config import ORACLE, config_json

SPEC = ModelSpec.from_config(config_json(ORACLE))
TOKENS = 5


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[False, True], ids=["norm-outside", "norm-inside"])
def connections(request, monkeypatch):
    """Ours in plain torch and vLLM's with the same weights, as on a GPU without (and with) kernels that norm."""
    with set_current_vllm_config(VllmConfig()):
        ours, theirs, norm = HyperConnection(SPEC), FusedHyperConnection(SPEC), RMSNorm(SPEC.hidden_size, SPEC.norm_eps)
    for seed, (name, weight) in enumerate(ours.named_parameters()):
        weight.data.copy_(random(*weight.shape, seed=seed) * weight.shape[-1] ** -0.5)
        theirs.get_parameter(name).data.copy_(weight)
    norm.weight.data.copy_(random(SPEC.hidden_size, seed=9))
    # This machine is a CPU to vLLM: call what ROCm's dispatch calls.
    for op in (theirs._pre, theirs._post, theirs._post_pre):
        monkeypatch.setattr(op, "_forward_method", op.forward_hip)
    theirs._norm_in_kernel = request.param
    return ours, theirs, norm


def test_vllms_ops_equal_the_formula(connections):
    """bf16 in and out, fp32 between: the same numbers up to the rounding of sums taken in another order."""
    ours, theirs, norm = connections
    streams = random(TOKENS, SPEC.hc_mult, SPEC.hidden_size, seed=20).bfloat16()
    output = random(TOKENS, SPEC.hidden_size, seed=21).bfloat16()
    hidden, mix = ours.before(streams, norm)
    for got, expected in zip(flat(theirs.before(streams, norm)), flat((hidden, mix)), strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(theirs.after(output, streams, mix), ours.after(output, streams, mix))
    got = theirs.between(output, streams, mix, norm)
    for one, other in zip(flat(got), flat(ours.between(output, streams, mix, norm)), strict=True):
        torch.testing.assert_close(one, other)


def flat(result):
    *tensors, mix = result
    return [*tensors, *mix]
