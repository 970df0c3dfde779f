"""inv_rope_quant undoes the rotation and lays heads out by group."""

import torch

from dsv4_rocm.kernels.inv_rope_quant.reference import inv_rope_quant
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.model_spec import FLASH, LayerKind

FREQUENCIES = rotary_frequencies(FLASH, LayerKind.C128A)


def test_undoes_the_rotation() -> None:
    x = torch.randn(6, 8, 512, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 127, 65_536, 1_000_000, 1_048_575])
    grouped = inv_rope_quant(rotate(x, positions, FREQUENCIES), positions, FREQUENCIES, num_groups=2)
    assert grouped.shape == (6, 2, 4 * 512)
    torch.testing.assert_close(grouped.view(6, 8, 512), x, rtol=1e-6, atol=2e-6)


def test_an_empty_batch_is_valid() -> None:
    assert inv_rope_quant(torch.zeros(0, 8, 512), torch.zeros(0, dtype=torch.int64), FREQUENCIES, 2).shape == (
        0,
        2,
        2048,
    )
