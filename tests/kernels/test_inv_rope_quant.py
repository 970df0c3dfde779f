"""inv_rope_quant undoes the rotation, lays heads out by group and quantizes 128 channels with one scale."""

import torch

from dsv4_rocm.kernels.inv_rope_quant.reference import inv_rope_quant
from dsv4_rocm.kernels.rotary import rotary_frequencies, rotate
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.number_formats import dequantize_fp8

FREQUENCIES = rotary_frequencies(FLASH, LayerKind.C128A)
POSITIONS = torch.tensor([0, 1, 127, 65_536, 1_000_000, 1_048_575])


def test_undoes_the_rotation() -> None:
    """Within half a step of e4m3: 2^-4 of a value, or 2^-10 of its scale where values are subnormal."""
    x = torch.randn(6, 8, 512, generator=torch.Generator().manual_seed(0))
    values, scales = inv_rope_quant(rotate(x, POSITIONS, FREQUENCIES), POSITIONS, FREQUENCIES, num_groups=2)
    assert values.shape == (6, 2, 4 * 512)
    assert scales.shape == (6, 2, 4 * 4)
    error = (dequantize_fp8(values, scales).view(6, 8, 512) - x).abs()
    step = torch.maximum(x.abs() * 2.0**-4, scales.view(6, 8, 4).repeat_interleave(128, -1) * 2.0**-10)
    assert (error <= step * (1 + 2.0**-10)).all()  # turning there and back costs fp32 roundings


def test_each_group_has_the_smallest_scale_that_fits() -> None:
    """`s = 2^ceil(log2(max(amax, 1e-4) / 448))` of the turned values."""
    x = torch.zeros(1, 2, 512)
    x[0, 0, :512:128] = torch.tensor([448.0, 448.5, 0.0, 1.75])
    x[0, 1, 448], x[0, 1, 449] = 3.0, 4.0  # one pair of the rotary part
    values, scales = inv_rope_quant(x, torch.tensor([0]), FREQUENCIES, num_groups=1)
    assert scales[0, 0].tolist() == [1.0, 2.0, 2.0**-22, 2.0**-8, 2.0**-22, 2.0**-22, 2.0**-22, 2.0**-6]
    turned, scales = inv_rope_quant(x, torch.tensor([65_536]), FREQUENCIES, num_groups=1)
    assert dequantize_fp8(turned, scales)[0, 0, 960:962].norm() <= 5 * (1 + 2.0**-4)
    assert not torch.equal(turned, values)


def test_bytes_are_canonical() -> None:
    x = -torch.full((1, 4, 512), 1e-9)
    x[0, :, ::128] = 448
    values, _ = inv_rope_quant(x, torch.tensor([7]), FREQUENCIES, num_groups=4)
    assert not ((values & 0x7F) == 0x7F).any()
    assert not (values == 0x80).any()
    assert (values == 0).any()


def test_an_empty_batch_is_valid() -> None:
    values, scales = inv_rope_quant(torch.zeros(0, 8, 512), torch.zeros(0, dtype=torch.int64), FREQUENCIES, 2)
    assert values.shape == (0, 2, 2048)
    assert scales.shape == (0, 2, 16)
