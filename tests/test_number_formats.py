"""Bytes of the number formats, exhaustively where the format is small."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4_rocm import number_formats as nf

ALL_BYTES = torch.arange(256, dtype=torch.uint8)
CANONICAL = ALL_BYTES[~torch.isin(ALL_BYTES, torch.tensor([0x7F, 0x80, 0xFF], dtype=torch.uint8))]
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_canonical_bytes_mean_half_on_fnuz_hardware() -> None:
    ocp = nf.e4m3_decode(CANONICAL)
    fnuz = CANONICAL.view(torch.float8_e4m3fnuz).float()
    assert torch.equal(fnuz * 2, ocp)
    assert nf.e4m3_decode(torch.tensor([0x38], dtype=torch.uint8)).item() == 1.0


def test_minus_zero_differs_between_the_encodings() -> None:
    byte = torch.tensor([0x80], dtype=torch.uint8)
    assert nf.e4m3_decode(byte).item() == 0.0
    assert byte.view(torch.float8_e4m3fnuz).float().isnan()


def test_every_canonical_byte_survives_a_round_trip() -> None:
    assert torch.equal(nf.e4m3_encode(nf.e4m3_decode(CANONICAL)), CANONICAL)


@given(st.lists(floats, min_size=1, max_size=64))
def test_encoding_is_canonical(values: list[float]) -> None:
    byte = nf.e4m3_encode(torch.tensor(values))
    assert torch.isin(byte, CANONICAL).all()


@pytest.mark.parametrize(("value", "byte"), [(-1e-4, 0x00), (-0.0, 0x00), (1.0, 0x38), (1e9, 0x7E), (-1e9, 0xFE)])
def test_known_bytes(value: float, byte: int) -> None:
    assert nf.e4m3_encode(torch.tensor([value])).item() == byte


@pytest.mark.parametrize(
    ("amax", "top", "exponent"), [(100.0, 448.0, -2), (100.0, 224.0, -1), (448.0, 448.0, 0), (449.0, 448.0, 1)]
)
def test_scale_exponent(amax: float, top: float, exponent: int) -> None:
    assert nf.pow2_ceil(torch.tensor(amax / top)).item() == 2.0**exponent


def test_group_scale_has_its_floor_on_amax() -> None:
    assert nf.fp8_group_scale(torch.zeros(1, 64), 64).item() == 2.0**-22  # 2^ceil(log2(1e-4 / 448))


@given(st.integers(-126, 127))
def test_e8m0_round_trip(exponent: int) -> None:
    scale = torch.tensor([2.0**exponent])
    code = nf.e8m0_encode(scale)
    assert code.item() == exponent + 127
    assert torch.equal(nf.e8m0_decode(code), scale)


def test_e8m0_double() -> None:
    code = torch.tensor([0, 127, 253, 254, 255], dtype=torch.uint8)
    assert nf.e8m0_double(code).tolist() == [1, 128, 254, 254, 255]
    assert nf.e8m0_decode(code[-1:]).isnan()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0), (7.0, 6.0), (-5.0, -4.0)],
)
def test_e2m1_ties_go_to_the_even_code(value: float, expected: float) -> None:
    assert nf.e2m1_decode(nf.e2m1_encode(torch.tensor([value]))).item() == expected


def test_mxfp4_packs_the_even_element_low() -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 6.0, 1.0
    packed, scale = nf.quantize_mxfp4(x)
    assert packed[0, 0].item() == 7 | 2 << 4
    assert scale.tolist() == [[127]]
    assert torch.equal(nf.dequantize_mxfp4(packed, scale), x)


@pytest.mark.parametrize("shape", [(128, 128), (200, 300), (1, 1)])
def test_fp8_blocks_round_trip_within_half_a_step(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    byte, scale = nf.quantize_fp8_blocks(weight)
    assert scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    error = (nf.dequantize_fp8_blocks(byte, scale) - weight).abs()
    smallest_step = 2.0**-9 * nf.e8m0_decode(scale).max()  # of subnormal e4m3 values
    assert (error <= weight.abs() * 2.0**-4 + smallest_step).all()
    assert torch.equal(nf.dequantize_fp8_blocks(byte, nf.e8m0_decode(scale)), nf.dequantize_fp8_blocks(byte, scale))
