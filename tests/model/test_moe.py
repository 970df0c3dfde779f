"""Routing and experts against the formula, one token at a time."""

import pytest
import torch

from dsv4_rocm.arch import HOST
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import CacheEncodings
from dsv4_rocm.model.moe import HostExperts, Router, clamped_swiglu
from dsv4_rocm.model_spec import ModelSpec
from dsv4_rocm.testing.tiny_config import ORACLE, config_json

SPEC = ModelSpec.from_config(config_json(ORACLE))
CONTEXT = LayerContext(SPEC, HOST, CacheEncodings(Encoding.FP32, Encoding.FP32), None, 1)


def filled(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        if weight.is_floating_point():
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
    return module


@pytest.mark.parametrize(("gate", "up", "limit", "expected"), [(50, 1, 10, 10), (-50, 1, 10, -50), (1, -50, 10, -10)])
def test_clamp(gate: float, up: float, limit: float, expected: float) -> None:
    """gate 50 -> 10 before SiLU, gate -50 stays, up -50 -> -10."""
    got = clamped_swiglu(torch.tensor(float(gate)), torch.tensor(float(up)), limit)
    inner = expected if gate != 1 else gate
    scale = up if gate != 1 else expected
    assert got.item() == pytest.approx(torch.nn.functional.silu(torch.tensor(float(inner))).item() * scale)


def test_bias_decides_the_choice_but_not_the_weight() -> None:
    router = filled(Router(SPEC, hash_routed=False))
    hidden = torch.randn(5, SPEC.hidden_size, generator=torch.Generator().manual_seed(1))
    router.bias.data.fill_(0.0)
    router.bias.data[3] = 100.0
    chosen, weight = router(hidden, torch.zeros(5, dtype=torch.int64))
    score = torch.nn.functional.softplus(hidden @ router.projection.weight.T).sqrt()
    assert (chosen == 3).any(1).all()
    expected = score.gather(1, chosen)
    torch.testing.assert_close(weight, expected / expected.sum(1, keepdim=True) * SPEC.routed_scaling_factor)


def test_hash_routing_goes_by_token_id() -> None:
    router = filled(Router(SPEC, hash_routed=True))
    router.tid2eid.data[7] = torch.tensor([4, 0, 2])
    chosen, _ = router(torch.randn(1, SPEC.hidden_size), torch.tensor([7]))
    assert chosen.tolist() == [[4, 0, 2]]


def test_experts_equal_the_formula_and_padding_changes_nothing() -> None:
    experts = filled(HostExperts(CONTEXT, "experts"))
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(8, SPEC.hidden_size, generator=generator)
    chosen = torch.stack([torch.randperm(SPEC.num_experts, generator=generator)[:3] for _ in range(8)])
    weight = torch.rand(8, 3, generator=generator)
    weight[3:] = 0.0  # five padded rows
    got = experts(hidden, chosen, weight)
    for t in range(3):
        expected = torch.zeros(SPEC.hidden_size, dtype=torch.float64)
        for expert, share in zip(chosen[t].tolist(), weight[t].tolist(), strict=True):
            w1, w3, w2 = (getattr(experts, name)[expert].double() for name in ("w1", "w3", "w2"))
            gate, up = w1 @ hidden[t].double(), w3 @ hidden[t].double()
            expected += w2 @ (clamped_swiglu(gate, up, SPEC.swiglu_limit) * share)
        torch.testing.assert_close(got[t].double(), expected, rtol=1e-5, atol=1e-6)
    assert (got[3:] == 0).all()
    torch.testing.assert_close(experts(hidden[:3], chosen[:3], weight[:3]), got[:3], rtol=1e-6, atol=1e-6)
