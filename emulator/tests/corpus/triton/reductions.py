"""Kernels whose threads exchange values: reductions, scans, sorts, atomics."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < columns
    v = tl.load(x + row * columns + c, mask=m, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * columns + c, e / tl.sum(e, 0), mask=m)


@triton.jit
def layernorm(x, weight, bias, out, mean, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, columns, BLOCK):
        c = at + tl.arange(0, BLOCK)
        v = tl.load(x + row * columns + c, mask=c < columns, other=0.0).to(tl.float32)
        total += v
        squares += v * v
    mu = tl.sum(total, 0) / columns
    variance = tl.sum(squares, 0) / columns - mu * mu
    scale = 1.0 / tl.sqrt(variance + eps)
    tl.store(mean + row, mu)
    for at in range(0, columns, BLOCK):
        c = at + tl.arange(0, BLOCK)
        m = c < columns
        v = tl.load(x + row * columns + c, mask=m, other=0.0).to(tl.float32)
        w = tl.load(weight + c, mask=m)
        b = tl.load(bias + c, mask=m)
        tl.store(out + row * columns + c, (v - mu) * scale * w + b, mask=m)


@triton.jit
def argmax(x, values, indices, low, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Reductions along one axis of a tile, with their index."""
    r = tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    v = tl.load(x + r[:, None] * COLUMNS + c[None, :])
    tl.store(values + r, tl.max(v, 1))
    tl.store(indices + r, tl.argmax(v, 1))
    tl.store(low + c, tl.argmin(v, 0))


@triton.jit
def combine(a0, b0, a1, b1):
    return a1 * a0, a1 * b0 + b1


@triton.jit
def scans(x, sums, recurrence, backwards, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Prefix sums, a linear recurrence as an associative scan, and a reversed product scan."""
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLUMNS)[None, :]
    at = r * COLUMNS + c
    v = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(v, 1))
    _, y = tl.associative_scan((tl.full((ROWS, COLUMNS), 0.5, tl.float32), v), 1, combine)
    tl.store(recurrence + at, y)
    tl.store(backwards + at, tl.cumsum(v, 0, reverse=True))


@triton.jit
def sort(x, up, down, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    v = tl.load(x + at)
    tl.store(up + at, tl.sort(v, 1))
    tl.store(down + at, tl.sort(v, 1, descending=True))


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + i, mask=i < n, other=0), BINS, mask=i < n)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


@triton.jit
def atomics(x, bins, sums, halves, extremes, masks, old, BLOCK: tl.constexpr):
    """Every read-modify-write that Triton has."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    k = v % 16
    zero = tl.zeros((BLOCK,), tl.int32)
    f = v.to(tl.float32)
    tl.atomic_add(bins + k, 1)
    tl.atomic_add(sums + k, f, sem="relaxed")
    tl.atomic_add(halves + (i % 32), tl.full((BLOCK,), 0.5, tl.float16))
    tl.atomic_max(extremes + 0 + zero, v)
    tl.atomic_min(extremes + 1 + zero, v)
    tl.atomic_or(masks + 0 + zero, v)
    tl.atomic_and(masks + 1 + zero, v | 0x100)
    tl.atomic_xor(masks + 2 + zero, v)
    tl.store(old + i, tl.atomic_xchg(masks + 16 + i, v))


@triton.jit
def lock(x, out, mutex, BLOCK: tl.constexpr):
    """Adds blocks up under a spin lock."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i)
    while tl.atomic_cas(mutex, 0, 1) == 1:
        pass
    tl.debug_barrier()
    tl.store(out + i, tl.load(out + i) + v)
    tl.debug_barrier()
    tl.atomic_xchg(mutex, 0)


@triton.jit
def shapes(x, transposed, joined, picked, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Layout changes through shared memory: transposition, join, split, flip, gather."""
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLUMNS)[None, :]
    v = tl.load(x + r * COLUMNS + c)
    t = tl.trans(v)
    tl.store(transposed + tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :], t)
    j = tl.join(v, v * 2)
    j = tl.reshape(j, (ROWS, 2 * COLUMNS))
    tl.store(joined + r * (2 * COLUMNS) + tl.arange(0, 2 * COLUMNS)[None, :], j)
    index = tl.broadcast_to((c * 7 + r) % COLUMNS, (ROWS, COLUMNS))
    tl.store(picked + r * COLUMNS + c, tl.gather(tl.flip(v, 1), index, 1))
