"""Kernels without tiles of matrices: arithmetic, conversions, memory, control flow."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@triton.jit
def gelu(x, out_erf, out_tanh, n, BLOCK: tl.constexpr):
    """Both forms of the GELU: by erf, and by tanh."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m, other=0.0).to(tl.float32)
    exact = 0.5 * v * (1.0 + libdevice.erf(v * 0.7071067811865476))
    approx = 0.5 * v * (1.0 + libdevice.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))
    tl.store(out_erf + i, exact, mask=m)
    tl.store(out_tanh + i, approx.to(tl.float16), mask=m)


@triton.jit
def functions(x, out, n, BLOCK: tl.constexpr):
    """Row r of the output is one elementary function of x, which is positive."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + 0 * n + i, tl.exp(v))
    tl.store(out + 1 * n + i, tl.log(v))
    tl.store(out + 2 * n + i, tl.sin(v))
    tl.store(out + 3 * n + i, tl.cos(v))
    tl.store(out + 4 * n + i, tl.sqrt_rn(v))
    tl.store(out + 5 * n + i, tl.rsqrt(v))
    tl.store(out + 6 * n + i, tl.exp2(v))
    tl.store(out + 7 * n + i, tl.log2(v))
    tl.store(out + 8 * n + i, tl.floor(v * 8))
    tl.store(out + 9 * n + i, tl.ceil(v * 8))
    tl.store(out + 10 * n + i, tl.div_rn(1.0, v))
    tl.store(out + 11 * n + i, tl.fma(v, v, -v))
    tl.store(out + 12 * n + i, libdevice.log1p(v))
    tl.store(out + 13 * n + i, libdevice.expm1(v))
    tl.store(out + 14 * n + i, libdevice.atan2(v, 2.0))
    tl.store(out + 15 * n + i, libdevice.pow(v, 1.75))
    tl.store(out + 16 * n + i, libdevice.sinh(v))
    tl.store(out + 17 * n + i, libdevice.lgamma(v))
    tl.store(out + 18 * n + i, libdevice.rint(v * 8))
    tl.store(out + 19 * n + i, libdevice.fmod(v, 0.375))
    tl.store(out + 20 * n + i, libdevice.acos(v * 0.2))
    tl.store(out + 21 * n + i, libdevice.cbrt(v))
    tl.store(out + 22 * n + i, tl.sigmoid(v))
    tl.store(out + 23 * n + i, libdevice.hypot(v, 1.5))


@triton.jit
def doubles(x, out, n, BLOCK: tl.constexpr):
    """Binary64 functions; x is positive."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + 0 * n + i, tl.exp(v))
    tl.store(out + 1 * n + i, tl.log(v))
    tl.store(out + 2 * n + i, tl.sin(v))
    tl.store(out + 3 * n + i, tl.sqrt(v))
    tl.store(out + 4 * n + i, 1.0 / v)
    tl.store(out + 5 * n + i, libdevice.tanh(v))
    tl.store(out + 6 * n + i, v.to(tl.float32).to(tl.float64))
    tl.store(out + 7 * n + i, (v * 1000).to(tl.int64).to(tl.float64))


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    """Row r of the output is one operation on signed 32-bit integers; y is never zero."""
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    ua = a.to(tl.uint32, bitcast=True)
    ub = b.to(tl.uint32, bitcast=True)
    tl.store(out + 0 * n + i, a * b)
    tl.store(out + 1 * n + i, a // b)
    tl.store(out + 2 * n + i, a % b)
    tl.store(out + 3 * n + i, (ua // ub).to(tl.int32, bitcast=True))
    tl.store(out + 4 * n + i, (ua % ub).to(tl.int32, bitcast=True))
    tl.store(out + 5 * n + i, tl.minimum(a, b))
    tl.store(out + 6 * n + i, tl.maximum(ua, ub).to(tl.int32, bitcast=True))
    tl.store(out + 7 * n + i, a >> (b & 31))
    tl.store(out + 8 * n + i, (ua >> (ub & 31)).to(tl.int32, bitcast=True))
    tl.store(out + 9 * n + i, a << (b & 31))
    tl.store(out + 10 * n + i, tl.umulhi(ua, ub).to(tl.int32, bitcast=True))
    tl.store(out + 11 * n + i, libdevice.popc(a))
    tl.store(out + 12 * n + i, libdevice.clz(a))
    tl.store(out + 13 * n + i, libdevice.brev(a))
    tl.store(out + 14 * n + i, libdevice.ffs(a))
    tl.store(out + 15 * n + i, libdevice.byte_perm(a, b, 0x5240))
    tl.store(out + 16 * n + i, (a ^ b) & ~(a | 5))
    tl.store(out + 17 * n + i, tl.abs(a))
    tl.store(out + 18 * n + i, libdevice.mulhi(a, b))
    tl.store(out + 19 * n + i, (a.to(tl.int8) * b.to(tl.int8)).to(tl.int32))
    tl.store(out + 20 * n + i, (a.to(tl.int16) // (b.to(tl.int16) | 1)).to(tl.int32))
    tl.store(out + 21 * n + i, (a.to(tl.int64) * b.to(tl.int64) >> 17).to(tl.int32))
    tl.store(out + 22 * n + i, (a.to(tl.int64) * 1000003 // b.to(tl.int64)).to(tl.int32))
    tl.store(out + 23 * n + i, tl.where(a > b, a, -b))


@triton.jit
def conversions(x, out, n, BLOCK: tl.constexpr):
    """Row r of the output is x after a trip through a narrower type."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + 0 * n + i, v.to(tl.float16).to(tl.float32))
    tl.store(out + 1 * n + i, v.to(tl.bfloat16).to(tl.float32))
    tl.store(out + 2 * n + i, v.to(tl.float8e4nv).to(tl.float32))
    tl.store(out + 3 * n + i, v.to(tl.float8e5).to(tl.float32))
    tl.store(out + 4 * n + i, v.to(tl.int32).to(tl.float32))
    tl.store(out + 5 * n + i, v.to(tl.int8).to(tl.float32))
    tl.store(out + 6 * n + i, v.to(tl.int64).to(tl.float32))
    tl.store(out + 7 * n + i, v.to(tl.float16).to(tl.float8e5).to(tl.bfloat16).to(tl.float32))
    tl.store(out + 8 * n + i, v.to(tl.bfloat16).to(tl.float8e4nv).to(tl.float16).to(tl.float32))
    tl.store(out + 9 * n + i, v.to(tl.float16, fp_downcast_rounding="rtz").to(tl.float32))
    tl.store(out + 10 * n + i, v.to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32))
    tl.store(out + 11 * n + i, tl.abs(v).to(tl.uint8).to(tl.float32))
    tl.store(out + 12 * n + i, v.to(tl.float64).to(tl.float32))
    tl.store(out + 13 * n + i, tl.clamp(v, -1.5, 2.5))
    tl.store(out + 14 * n + i, v.to(tl.int16).to(tl.float16).to(tl.float32))
    tl.store(out + 15 * n + i, (v > 1.0).to(tl.float32))


@triton.jit
def halves(x, y, out, n, BLOCK: tl.constexpr):
    """Arithmetic in the type of the pointers, eight elements a thread."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    s = tl.fma(a, b, a) - b
    s = tl.maximum(s, a * 0.5)
    s = tl.where(tl.abs(s) > 4.0, -s, s)
    tl.store(out + i, s)


@triton.jit
def gather(index, source, out, scattered, n, stride: tl.int64, BLOCK: tl.constexpr):
    """Indexed loads and stores, masked, with 64-bit index arithmetic."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    k = tl.load(index + i, mask=m, other=-1).to(tl.int64)
    ok = m & (k >= 0)
    v = tl.load(source + k * stride, mask=ok, other=-7.0)
    tl.store(out + i, v, mask=m)
    tl.store(scattered + k * 2 + 1, v, mask=ok)


@triton.jit
def collatz(x, out, n, BLOCK: tl.constexpr):
    """Steps until 1: a loop that ends when no element of the block is left."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    steps = tl.zeros((BLOCK,), tl.int32)
    while tl.max(v, 0) > 1:
        live = v > 1
        v = tl.where(live, tl.where(v % 2 == 0, v // 2, 3 * v + 1), v)
        steps += live.to(tl.int32)
    tl.store(out + i, steps)


@triton.jit
def dropout(x, out, n, seed, BLOCK: tl.constexpr):
    """Philox random numbers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, i) > 0.25
    tl.store(out + i, tl.where(keep, tl.load(x + i) / 0.75, 0.0))


@triton.jit
def step(v, k):
    if k % 3 == 0:
        r = v * 2 + 1
    elif k % 3 == 1:
        r = v - k
    else:
        r = v ^ k
    return r


@triton.jit(noinline=True)
def rounds(v, count):
    for k in range(count):
        v = step(v, k)
    return v


@triton.jit
def calls(x, out, count):
    """A device function that is not inlined, with loops and branches."""
    i = tl.program_id(0)
    v = tl.load(x + i)
    tl.store(out + i, rounds(v, count) + rounds(-v, count + 2))
