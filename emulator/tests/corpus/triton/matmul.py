"""Matrix products: pointers, tensor descriptors, persistence, warp specialisation, block scales."""

import triton
import triton.language as tl


@triton.jit
def pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANS_B: tl.constexpr,
             PRECISION: tl.constexpr, ACC: tl.constexpr):
    """C = A B with A of M x K, and B of K x N, or of N x K if TRANS_B."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    pa = a + m[:, None] * K + k[None, :]
    if TRANS_B:
        pb = b + n[None, :] * K + k[:, None]
    else:
        pb = b + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), ACC)
    for at in range(0, K, BK):
        ta = tl.load(pa, mask=(m[:, None] < M) & (k[None, :] < K - at), other=0.0)
        tb = tl.load(pb, mask=(n[None, :] < N) & (k[:, None] < K - at), other=0.0)
        acc = tl.dot(ta, tb, acc, input_precision=PRECISION, out_dtype=ACC)
        pa += BK
        pb += BK if TRANS_B else BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B^T with tensor descriptors that the host made."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        acc = tl.dot(a.load([m, at]), b.load([n, at]).T, acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def transposed(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A^T B with A of K x M: both operands lie along M and N."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        acc = tl.dot(a.load([at, m]).T, b.load([at, n]), acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def device_descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B with tensor descriptors that the kernel makes."""
    da = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    db = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    dc = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        acc = tl.dot(da.load([m, at]), db.load([at, n]), acc)
    dc.store([m, n], acc.to(c.dtype.element_ty))


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
               WARP_SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr):
    """C = A B^T; each program computes several tiles, perhaps by specialised warps."""
    columns = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * columns
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE):
        m = tile // columns * BM
        n = tile % columns * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for at in range(0, K, BK):
            acc = tl.dot(a.load([m, at]), b.load([n, at]).T, acc)
        c.store([m, n], acc.to(c.dtype))


@triton.jit
def specialised(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B^T with the loop over K split among specialised warps."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in tl.range(0, K, BK, warp_specialize=True):
        acc = tl.dot(a.load([m, at]), b.load([n, at]).T, acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def reduce_add(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C += A B^T: program 2 of the grid is a part of K, added by the TMA engine."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    k = tl.program_id(2) * BK
    c.atomic_add([m, n], tl.dot(a.load([m, k]), b.load([n, k]).T))


@triton.jit
def scaled(a, sa, b, sb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FORMAT_A: tl.constexpr,
           FORMAT_B: tl.constexpr, BLOCK: tl.constexpr):
    """C = A B^T with a scale factor for each BLOCK elements of K, row-major."""
    PACK_A: tl.constexpr = 2 if FORMAT_A == "e2m1" else 1
    PACK_B: tl.constexpr = 2 if FORMAT_B == "e2m1" else 1
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    ka = tl.arange(0, BK // PACK_A)
    kb = tl.arange(0, BK // PACK_B)
    ks = tl.arange(0, BK // BLOCK)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        ta = tl.load(a + m[:, None] * (K // PACK_A) + at // PACK_A + ka[None, :])
        tb = tl.load(b + n[:, None] * (K // PACK_B) + at // PACK_B + kb[None, :])
        fa = tl.load(sa + m[:, None] * (K // BLOCK) + at // BLOCK + ks[None, :])
        fb = tl.load(sb + n[:, None] * (K // BLOCK) + at // BLOCK + ks[None, :])
        acc = tl.dot_scaled(ta, fa, FORMAT_A, tb.T, fb, FORMAT_B, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc)


@triton.jit
def blocked_scales(a, sa, b, sb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    """C = A B^T by TMA, the scale factors in the 128 x 4 blocks that tcgen05.cp takes."""
    m = tl.program_id(0)
    n = tl.program_id(1)
    REP_M: tl.constexpr = BM // 128
    REP_N: tl.constexpr = BN // 128
    REP_K: tl.constexpr = BK // BLOCK // 4
    PACK: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K // BK):
        ta = a.load([m * BM, at * (BK // PACK)])
        tb = b.load([n * BN, at * (BK // PACK)])
        fa = sa.load([0, m * REP_M, at * REP_K, 0, 0])
        fb = sb.load([0, n * REP_N, at * REP_K, 0, 0])
        fa = fa.reshape(REP_M, REP_K, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BM, BK // BLOCK)
        fb = fb.reshape(REP_N, REP_K, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BN, BK // BLOCK)
        acc = tl.dot_scaled(ta, fa, FORMAT, tb.T, fb, FORMAT, acc)
    c.store([m * BM, n * BN], acc)


@triton.jit
def attention(q, k, v, out, scale, L, BM: tl.constexpr, BN: tl.constexpr, HEAD: tl.constexpr, WARP_SPECIALIZE: tl.constexpr):
    """One head of attention over tiles of keys: two products and an online softmax."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, HEAD)
    tq = tl.load(q + m[:, None] * HEAD + d[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, HEAD), tl.float32)
    for at in tl.range(0, L, BN, warp_specialize=WARP_SPECIALIZE):
        n = at + tl.arange(0, BN)
        tk = tl.load(k + n[:, None] * HEAD + d[None, :])
        s = tl.dot(tq, tk.T) * scale
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        tv = tl.load(v + n[:, None] * HEAD + d[None, :])
        acc = tl.dot(p.to(tv.dtype), tv, acc)
        top = new
    tl.store(out + m[:, None] * HEAD + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty))


@triton.jit
def row_gather(a, index, out, COLUMNS: tl.constexpr, ROWS: tl.constexpr, TOTAL: tl.constexpr):
    """Rows of a matrix picked by an index, by TMA's gather, doubled, and scattered back reversed."""
    da = tl.make_tensor_descriptor(a, shape=[TOTAL, COLUMNS], strides=[COLUMNS, 1], block_shape=[1, COLUMNS])
    do = tl.make_tensor_descriptor(out, shape=[TOTAL, COLUMNS], strides=[COLUMNS, 1], block_shape=[1, COLUMNS])
    r = tl.load(index + tl.arange(0, ROWS))
    do.scatter(da.gather(r, 0) * 2, TOTAL - 1 - r, 0)
