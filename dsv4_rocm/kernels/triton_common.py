"""What the Triton kernels share: which devices they serve, rotation, and the bytes of cache rows."""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import JITFunction

from dsv4_rocm import arch
from dsv4_rocm.arch import Fp8Encoding, GpuArch, Vendor
from dsv4_rocm.cache.layout import CacheKind, CacheLayout, Encoding, TileOrder
from dsv4_rocm.number_formats import FP4_AMAX_FLOOR

LOG2E = tl.constexpr(1.4426950408889634)
TWO_OVER_PI = tl.constexpr(0.6366197723675814)
# pi / 2 in three parts of 24 bits: k * part is exact enough in an fma for every k below 2^22.
HALF_PI_HIGH = tl.constexpr(1.57079637050628662109375)
HALF_PI_MIDDLE = tl.constexpr(-4.37113900018624283e-8)
HALF_PI_LOW = tl.constexpr(-1.71512449e-15)
FP4_FLOOR = tl.constexpr(FP4_AMAX_FLOOR)


@triton.jit
def sin_cos(angle):
    """Sine and cosine of fp32 angles up to 2^22 either way, within 2 ulp."""
    k = tl.floor(angle * TWO_OVER_PI + 0.5)
    r = tl.fma(k, -HALF_PI_HIGH, angle)
    r = tl.fma(k, -HALF_PI_MIDDLE, r)
    r = tl.fma(k, -HALF_PI_LOW, r)
    z = r * r
    sine = tl.fma(tl.fma(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1)
    sine = tl.fma(sine * z, r, r)
    cosine = tl.fma(tl.fma(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2)
    cosine = tl.fma(cosine * z, z, tl.fma(-0.5, z, 1.0))
    quadrant = k.to(tl.int32)
    odd = (quadrant & 1) != 0
    s = tl.where(odd, cosine, sine)
    c = tl.where(odd, sine, cosine)
    return tl.where((quadrant & 2) != 0, -s, s), tl.where(((quadrant + 1) & 2) != 0, -c, c)


@triton.jit
def turn(frequencies_ptr, position, CHANNELS: tl.constexpr, ROPE: tl.constexpr):
    """Sine and cosine of every channel pair of a row: fp32 [CHANNELS / 2]; 0 and 1 before the rope part."""
    pair = tl.arange(0, CHANNELS // 2) - (CHANNELS - ROPE) // 2
    frequency = tl.load(frequencies_ptr + pair, mask=pair >= 0, other=0.0)
    return sin_cos(position.to(tl.int32).to(tl.float32) * frequency)


@triton.jit
def turn_rows(frequencies_ptr, positions, CHANNELS: tl.constexpr, ROPE: tl.constexpr):
    """`turn` for rows of several tokens: positions [ROWS] -> fp32 [ROWS, CHANNELS / 2]."""
    pair = tl.arange(0, CHANNELS // 2) - (CHANNELS - ROPE) // 2
    frequency = tl.load(frequencies_ptr + pair, mask=pair >= 0, other=0.0)
    return sin_cos(positions.to(tl.int32).to(tl.float32)[:, None] * frequency[None, :])


@triton.jit
def rotate_row(x, sine, cosine, CHANNELS: tl.constexpr):
    """Turn the adjacent pairs of one fp32 row [CHANNELS]."""
    even, odd = tl.split(tl.reshape(x, (CHANNELS // 2, 2)))
    return tl.reshape(tl.join(even * cosine - odd * sine, even * sine + odd * cosine), (CHANNELS,))


@triton.jit
def rotate_rows(x, sine, cosine, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Turn the adjacent pairs of fp32 rows [ROWS, CHANNELS]; sine and cosine are [1 or ROWS, CHANNELS / 2]."""
    even, odd = tl.split(tl.reshape(x, (ROWS, CHANNELS // 2, 2)))
    turned = tl.join(even * cosine - odd * sine, even * sine + odd * cosine)
    return tl.reshape(turned, (ROWS, CHANNELS))


@triton.jit
def hadamard_rows(x, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Orthonormal Walsh-Hadamard transform of fp32 rows [ROWS, CHANNELS], sums in the order of the reference."""
    channel = tl.arange(0, CHANNELS)[None, :]
    for bit in tl.static_range(CHANNELS.value.bit_length() - 1):
        partner = tl.gather(x, tl.broadcast_to(channel ^ (1 << bit), (ROWS, CHANNELS)), 1)
        sign = 1.0 - 2.0 * ((channel >> bit) & 1).to(tl.float32)  # the second of a pair: first - second
        x = tl.fma(x, sign, partner)
    return x * CHANNELS**-0.5


@triton.jit
def largest(x, axis: tl.constexpr):
    """Largest magnitude of fp32 values along an axis, compared as integers: a float maximum is two instructions."""
    return tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis).to(tl.float32, bitcast=True)


@triton.jit
def scale_exponent(amax):
    """Biased exponent (int32) of the fp8 scale of a group with this amax: `pow2_ceil(max(amax, 1e-4) / 448)`."""
    bits = (tl.maximum(amax, 1e-4) / 448.0).to(tl.int32, bitcast=True)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def e4m3_bytes(x, exponent, FNUZ: tl.constexpr):
    """Canonical e4m3 bytes (uint8) of x / 2^(exponent - 127); on FNUZ hardware half of it gives the same byte."""
    inverse = ((254 - FNUZ - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = x * inverse
    if FNUZ:
        return tl.clamp(scaled, -224.0, 224.0).to(tl.float8e4b8).to(tl.uint8, bitcast=True)
    byte = tl.clamp(scaled, -448.0, 448.0).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(byte == 0x80, 0, byte).to(tl.uint8)


@triton.jit
def store_key_row(
    page_ptr,  # uint8, one page
    row,
    x,  # fp32 [CHANNELS], rotated
    CHANNELS: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """Encode one key row as `rows.encode_rows` does and store it."""
    rounded = x.to(tl.bfloat16)
    groups = tl.reshape(rounded.to(tl.float32), (CHANNELS // GROUP, GROUP))
    exponent = scale_exponent(tl.max(tl.abs(groups), 1))
    byte = tl.reshape(e4m3_bytes(groups, exponent[:, None], FNUZ), (CHANNELS,))
    channel = tl.arange(0, CHANNELS)
    data_ptr = page_ptr + row * DATA_BYTES
    tl.store(data_ptr + channel, byte, mask=channel < NOPE)
    rope_ptr = (data_ptr + NOPE).to(tl.pointer_type(tl.bfloat16))
    tl.store(rope_ptr + (channel - NOPE), rounded, mask=channel >= NOPE)
    group = tl.arange(0, CHANNELS // GROUP)
    scale_ptr = page_ptr + SCALE_OFFSET + row * SCALE_BYTES
    tl.store(scale_ptr + group, tl.where(group < NOPE // GROUP, exponent, 0).to(tl.uint8), mask=group < SCALE_BYTES)


@triton.jit
def store_key_rows(
    page_ptr,  # uint8 [ROWS], pages
    row,  # [ROWS], rows of those pages
    live,  # [ROWS], which rows to store
    x,  # fp32 [ROWS, CHANNELS], rotated
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """`store_key_row` for several rows; their eight scale bytes leave in one piece."""
    rounded = x.to(tl.bfloat16)
    groups = tl.reshape(rounded.to(tl.float32), (ROWS, CHANNELS // GROUP, GROUP))
    exponent = scale_exponent(largest(groups, 2))  # [ROWS, CHANNELS / GROUP]
    byte = tl.reshape(e4m3_bytes(groups, exponent[:, :, None], FNUZ), (ROWS, CHANNELS))
    channel = tl.arange(0, CHANNELS)[None, :]
    data_ptr = page_ptr + row * DATA_BYTES
    tl.store(data_ptr[:, None] + channel, byte, mask=live[:, None] & (channel < NOPE))
    rope_ptr = (data_ptr + NOPE).to(tl.pointer_type(tl.bfloat16))
    tl.store(rope_ptr[:, None] + (channel - NOPE), rounded, mask=live[:, None] & (channel >= NOPE))
    tl.static_assert(SCALE_BYTES == 8)
    group = tl.arange(0, CHANNELS // GROUP)[None, :]
    scales = tl.sum(tl.where(group < NOPE // GROUP, exponent, 0).to(tl.int64) << (8 * group).to(tl.int64), 1)
    scale_ptr = (page_ptr + SCALE_OFFSET + row * SCALE_BYTES).to(tl.pointer_type(tl.int64))
    tl.store(scale_ptr, scales, mask=live)


@triton.jit
def store_index_row(
    page_ptr,  # uint8, one page
    row,
    x,  # fp32 [CHANNELS], rotated
    CHANNELS: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """Encode one fp8 index row as `rows.encode_rows` does and store it."""
    exponent = scale_exponent(tl.max(tl.abs(x), 0))
    channel = tl.arange(0, CHANNELS)
    tl.store(page_ptr + row * DATA_BYTES + channel, e4m3_bytes(x, exponent, FNUZ))
    scale_ptr = (page_ptr + SCALE_OFFSET + row * SCALE_BYTES).to(tl.pointer_type(tl.float32))
    tl.store(scale_ptr, (exponent << 23).to(tl.float32, bitcast=True))


@triton.jit
def hadamard_row(x, CHANNELS: tl.constexpr, STAGES: tl.constexpr, FACTOR: tl.constexpr):
    """`number_formats.hadamard` of one fp32 row [CHANNELS = 2^STAGES], with the same sums; FACTOR is CHANNELS^-1/2.

    Each stage adds and subtracts neighbours and moves the bit that told them apart to the top, so that after all of
    them every bit is back in its place.
    """
    for _ in tl.static_range(STAGES):
        even, odd = tl.split(tl.reshape(x, (CHANNELS // 2, 2)))
        x = tl.reshape(tl.trans(tl.join(even + odd, even - odd)), (CHANNELS,))
    return x * FACTOR


@triton.jit
def e2m1_codes(x):
    """4-bit codes (int32) of fp32 values: round to nearest, ties to the even code, saturating at 6."""
    size = tl.minimum(tl.abs(x), 6.0)
    bits = size.to(tl.int32, bitcast=True)
    upper = ((bits + 0x1FFFFF + (bits >> 22 & 1)) >> 22) - 252  # from 1 on: rounded to one bit of mantissa
    # Up to 2 the step is a half, which is what 2^22 is rounded to: adding it leaves twice the value in the last bits.
    lower = (tl.minimum(size, 2.0) + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000
    return tl.maximum(lower, upper) | (x.to(tl.int32, bitcast=True) >> 28 & 8)


@triton.jit
def store_mxfp4_row(
    page_ptr,  # uint8, one page
    row,
    x,  # fp32 [CHANNELS], rotated by position
    CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    FACTOR: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
):
    """Encode one mxfp4 index row, Hadamard transform included, as `rows.encode_rows` does and store it."""
    groups = tl.reshape(hadamard_row(x, CHANNELS, STAGES, FACTOR), (CHANNELS // GROUP, GROUP))
    scale = tl.maximum(tl.max(tl.abs(groups), 1), FP4_FLOOR) / 6.0
    exponent = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23  # of the power of two above
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    # Eight codes, and the row's scales, are put together in 32 bits: the bits are disjoint, so a sum is an or.
    codes = tl.reshape(e2m1_codes(groups * inverse[:, None]), (CHANNELS // 8, 8))
    words = tl.sum(codes << (4 * tl.arange(0, 8))[None, :], 1)
    data_ptr = (page_ptr + row * DATA_BYTES).to(tl.pointer_type(tl.int32))
    tl.store(data_ptr + tl.arange(0, CHANNELS // 8), words)
    scale_ptr = (page_ptr + SCALE_OFFSET + row * SCALE_BYTES).to(tl.pointer_type(tl.int32))
    tl.store(scale_ptr, tl.sum(exponent << (8 * tl.arange(0, CHANNELS // GROUP)), 0))


def require_gpu() -> GpuArch:
    """The architecture this process computes on.

    Raises:
        ValueError: it is no GPU.
    """
    current = arch.current()
    if current.vendor is Vendor.HOST:
        raise ValueError(f"Triton kernels need an AMD or NVIDIA GPU, not {current.name}; use the reference")
    return current


def converts_fnuz() -> bool:
    """Whether the hardware's fp8 conversions mean FNUZ; ValueError without a GPU."""
    return require_gpu().fp8 is Fp8Encoding.E4M3FNUZ


def require_fp8_rows(op: str, layout: CacheLayout) -> None:
    """Refuse a cache whose bytes the kernels do not read or write.

    Raises:
        ValueError: the rows are not flat fp8 rows.
    """
    if layout.encoding is not Encoding.FP8 or layout.order is not TileOrder.FLAT or layout.rotated:
        raise ValueError(
            f"{op}: the Triton kernel takes flat, unrotated fp8 rows, got {layout.order.value} {layout.encoding.value} "
            f"{layout.kind.value} rows; use --kv-cache-dtype fp8 or the reference implementation"
        )


def require_byte_rows(op: str, layout: CacheLayout) -> None:
    """Refuse entries that the writers of byte-encoded rows do not write.

    Raises:
        ValueError: the rows are neither flat fp8 rows nor rotated mxfp4 index rows.
    """
    if layout.encoding is Encoding.MXFP4 and layout.kind is CacheKind.INDEX and layout.order is TileOrder.FLAT:
        return
    require_fp8_rows(op, layout)


def require_index_rows(op: str, layout: CacheLayout) -> None:
    """Refuse index rows whose bytes the kernels do not read.

    Raises:
        ValueError: the rows are not flat, or neither fp8 nor mxfp4.
    """
    if layout.order is not TileOrder.FLAT or layout.encoding not in (Encoding.FP8, Encoding.MXFP4):
        raise ValueError(
            f"{op}: the Triton kernel takes flat fp8 or mxfp4 index rows, got {layout.order.value} "
            f"{layout.encoding.value} {layout.kind.value} rows; use --kv-cache-dtype fp8 or the reference"
        )


def require_rows_of(op: str, **tensors: Tensor) -> None:
    """Refuse tensors whose last dimension is not contiguous.

    Raises:
        ValueError: naming the tensor and its strides.
    """
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{op}: {name} must be contiguous in its last dimension, got strides {tensor.stride()}")


def amd_options(**options: int) -> dict[str, int]:
    """Compile options that only AMD's compiler knows; nothing elsewhere."""
    return options if require_gpu().vendor is Vendor.AMD else {}


@contextmanager
def amd_compiler(async_copy: bool, buffer_ops: bool) -> Iterator[None]:
    """Forbid AMD's compiler something in kernels that are compiled inside; its settings come back afterwards.

    Args:
        async_copy: copies from memory to LDS that pass by the registers.
        buffer_ops: accesses through buffer descriptors, which it chooses for tensors below 2 GiB.
    """
    amd = triton.knobs.amd
    with amd.scope():  # a value put back by hand would hide the environment variable from then on
        if not async_copy:
            amd.use_async_copy = False
        if not buffer_ops:
            amd.use_buffer_ops = False
        yield


def loads_through_registers(kernel: JITFunction[Any]) -> JITFunction[Any]:
    """Compile a kernel for AMD without asynchronous copies and without buffer operations.

    Copies to LDS that pass by the registers split rows of 16 bytes into dwords; buffer operations load bytes one by
    one, or not, by the size of the pool. The compiler's settings change for a compilation only, not for each launch.
    """
    compile_kernel = kernel._do_compile

    def compile_with_settings(*args: Any, **options: Any) -> Any:
        with amd_compiler(async_copy=False, buffer_ops=False):
            return compile_kernel(*args, **options)

    kernel._do_compile = compile_with_settings
    return kernel
