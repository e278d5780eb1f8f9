"""Kernels in TileLang. Shapes are constants, as TileLang likes them."""

import tilelang.language as T


def gemm(m, n, k, bm, bn, bk, dtype="float16", out="float16", stages=3, threads=128):
    """C = A B^T through a pipeline of shared tiles."""

    @T.prim_func
    def kernel(a: T.Tensor((m, k), dtype), b: T.Tensor((n, k), dtype), c: T.Tensor((m, n), out)):
        with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=threads) as (bx, by):
            sa = T.alloc_shared((bm, bk), dtype)
            sb = T.alloc_shared((bn, bk), dtype)
            acc = T.alloc_fragment((bm, bn), "float32")
            T.clear(acc)
            for i in T.Pipelined(T.ceildiv(k, bk), num_stages=stages):
                T.copy(a[by * bm, i * bk], sa)
                T.copy(b[bx * bn, i * bk], sb)
                T.gemm(sa, sb, acc, transpose_B=True)
            T.copy(acc, c[by * bm, bx * bn])

    return kernel


def gemm_bias_silu(m, n, k, bm, bn, bk):
    """C = silu(A B + bias), with B as rows of K, through shared memory on the way out."""

    @T.prim_func
    def kernel(a: T.Tensor((m, k), "bfloat16"), b: T.Tensor((k, n), "bfloat16"), bias: T.Tensor((n,), "float32"), c: T.Tensor((m, n), "bfloat16")):
        with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=128) as (bx, by):
            sa = T.alloc_shared((bm, bk), "bfloat16")
            sb = T.alloc_shared((bk, bn), "bfloat16")
            sc = T.alloc_shared((bm, bn), "bfloat16")
            acc = T.alloc_fragment((bm, bn), "float32")
            T.clear(acc)
            for i in T.Pipelined(T.ceildiv(k, bk), num_stages=2):
                T.copy(a[by * bm, i * bk], sa)
                T.copy(b[i * bk, bx * bn], sb)
                T.gemm(sa, sb, acc)
            for i, j in T.Parallel(bm, bn):
                acc[i, j] = acc[i, j] + bias[bx * bn + j]
            for i, j in T.Parallel(bm, bn):
                acc[i, j] = acc[i, j] / (1.0 + T.exp(-acc[i, j]))
            T.copy(acc, sc)
            T.copy(sc, c[by * bm, bx * bn])

    return kernel


def gemm_tmem(m, n, k, bm, bn, bk, stages=2):
    """C = A B^T with an accumulator in tensor memory."""

    @T.prim_func
    def kernel(a: T.Tensor((m, k), "bfloat16"), b: T.Tensor((n, k), "bfloat16"), c: T.Tensor((m, n), "bfloat16")):
        with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=256) as (bx, by):
            sa = T.alloc_shared((bm, bk), "bfloat16")
            sb = T.alloc_shared((bn, bk), "bfloat16")
            tmem = T.alloc_tmem([bm, bn], "float32")
            done = T.alloc_barrier(1)
            acc = T.alloc_fragment((bm, bn), "float32")
            sc = T.alloc_shared((bm, bn), "bfloat16")
            for i in T.Pipelined(T.ceildiv(k, bk), num_stages=stages):
                T.copy(a[by * bm, i * bk], sa)
                T.copy(b[bx * bn, i * bk], sb)
                T.tcgen05_gemm(sa, sb, tmem, transpose_B=True, mbar=done, clear_accum=i == 0)
                T.mbarrier_wait_parity(done, i % 2)
                # TileLang has this fence after a barrier of threads only.
                T.tcgen05_after_thread_sync()
            T.copy(tmem, acc)
            T.copy(acc, sc)
            T.copy(sc, c[by * bm, bx * bn])

    return kernel


def softmax(rows, columns, block):
    """Rows of a softmax, a block of rows at a time."""

    @T.prim_func
    def kernel(x: T.Tensor((rows, columns), "float32"), out: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            v = T.alloc_fragment((block, columns), "float32")
            top = T.alloc_fragment((block,), "float32")
            total = T.alloc_fragment((block,), "float32")
            T.copy(x[bx * block, 0], v)
            T.reduce_max(v, top, dim=1)
            for i, j in T.Parallel(block, columns):
                v[i, j] = T.exp(v[i, j] - top[i])
            T.reduce_sum(v, total, dim=1)
            for i, j in T.Parallel(block, columns):
                out[bx * block + i, j] = v[i, j] / total[i]

    return kernel


def rms_norm(rows, columns):
    """A row a block: the root of the mean of squares, and a weight."""

    @T.prim_func
    def kernel(x: T.Tensor((rows, columns), "float16"), weight: T.Tensor((columns,), "float16"), out: T.Tensor((rows, columns), "float16")):
        with T.Kernel(rows, threads=128) as bx:
            v = T.alloc_fragment((1, columns), "float32")
            squares = T.alloc_fragment((1, columns), "float32")
            mean = T.alloc_fragment((1,), "float32")
            s = T.alloc_shared((1, columns), "float16")
            T.copy(x[bx, 0], s)
            T.copy(s, v)
            for i, j in T.Parallel(1, columns):
                squares[i, j] = v[i, j] * v[i, j]
            T.reduce_sum(squares, mean, dim=1)
            for i, j in T.Parallel(1, columns):
                out[bx, j] = v[i, j] * T.rsqrt(mean[i] / columns + 1e-5) * weight[j]

    return kernel


def silu_mul(n, block):
    """Elements of two arrays, with a tail that does not fill a block."""

    @T.prim_func
    def kernel(gate: T.Tensor((n,), "float32"), up: T.Tensor((n,), "float32"), out: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
            for i in T.Parallel(block):
                if bx * block + i < n:
                    out[bx * block + i] = gate[bx * block + i] / (1.0 + T.exp(-gate[bx * block + i])) * up[bx * block + i]

    return kernel


def column_sums(rows, columns, block):
    """Sums of blocks of rows, added to the result by atomics; and a running sum along the rows."""

    @T.prim_func
    def kernel(x: T.Tensor((rows, columns), "float32"), out: T.Tensor((columns,), "float32"), running: T.Tensor((rows, columns), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as bx:
            v = T.alloc_fragment((block, columns), "float32")
            s = T.alloc_shared((block, columns), "float32")
            total = T.alloc_fragment((columns,), "float32")
            T.copy(x[bx * block, 0], v)
            T.reduce_sum(v, total, dim=0)
            for j in T.Parallel(columns):
                T.atomic_add(out[j], total[j])
            T.copy(v, s)
            T.cumsum(s, dim=1)
            T.copy(s, running[bx * block, 0])

    return kernel


def attention(length, heads, dim, bm, bn):
    """Attention with a running maximum, a block of queries at a time."""

    @T.prim_func
    def kernel(q: T.Tensor((heads, length, dim), "float16"), k: T.Tensor((heads, length, dim), "float16"), v: T.Tensor((heads, length, dim), "float16"), out: T.Tensor((heads, length, dim), "float16")):
        with T.Kernel(T.ceildiv(length, bm), heads, threads=128) as (bx, h):
            sq = T.alloc_shared((bm, dim), "float16")
            sk = T.alloc_shared((bn, dim), "float16")
            sv = T.alloc_shared((bn, dim), "float16")
            s = T.alloc_fragment((bm, bn), "float32")
            p = T.alloc_fragment((bm, bn), "float16")
            o = T.alloc_fragment((bm, dim), "float32")
            top = T.alloc_fragment((bm,), "float32")
            before = T.alloc_fragment((bm,), "float32")
            factor = T.alloc_fragment((bm,), "float32")
            part = T.alloc_fragment((bm,), "float32")
            total = T.alloc_fragment((bm,), "float32")
            T.copy(q[h, bx * bm : (bx + 1) * bm, :], sq)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(top, -T.infinity("float32"))
            for i in T.Pipelined(T.ceildiv(length, bn), num_stages=2):
                T.copy(k[h, i * bn : (i + 1) * bn, :], sk)
                T.clear(s)
                T.gemm(sq, sk, s, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for r in T.Parallel(bm):
                    factor[r] = T.exp2(before[r] * 0.25 - top[r] * 0.25)
                for r, c in T.Parallel(bm, bn):
                    s[r, c] = T.exp2(s[r, c] * 0.25 - top[r] * 0.25)
                T.reduce_sum(s, part, dim=1)
                T.copy(s, p)
                for r in T.Parallel(bm):
                    total[r] = total[r] * factor[r] + part[r]
                for r, c in T.Parallel(bm, dim):
                    o[r, c] = o[r, c] * factor[r]
                T.copy(v[h, i * bn : (i + 1) * bn, :], sv)
                T.gemm(p, sv, o)
            for r, c in T.Parallel(bm, dim):
                o[r, c] = o[r, c] / total[r]
            T.copy(o, out[h, bx * bm : (bx + 1) * bm, :])

    return kernel


def gemm_roles(m, n, k, bm, bn, bk, stages, pair):
    """C = A B^T with barriers of our own: warp 0 loads, warp 1 multiplies, all store. Each CTA of a pair holds half of B."""
    ctas = 2 if pair else 1

    @T.prim_func
    def kernel(a: T.Tensor((m, k), "bfloat16"), b: T.Tensor((n, k), "bfloat16"), c: T.Tensor((m, n), "bfloat16")):
        with T.Kernel(T.ceildiv(m, bm), T.ceildiv(n, bn), threads=128, cluster_dims=ctas) as (by, bx):
            sa = T.alloc_shared((stages, bm, bk), "bfloat16")
            sb = T.alloc_shared((stages, bn // ctas, bk), "bfloat16")
            tmem = T.alloc_tmem([bm, bn], "float32")
            acc = T.alloc_fragment((bm, bn), "float32")
            sc = T.alloc_shared((bm, bn), "bfloat16")
            full = T.alloc_cluster_barrier([32 * ctas] * stages)
            free = T.alloc_cluster_barrier([1] * stages)
            done = T.alloc_cluster_barrier([1])
            thread = T.get_thread_binding()
            rank = T.block_rank_in_cluster()
            T.assume(rank < ctas)
            if thread < 32:
                for i in T.serial(k // bk):
                    T.mbarrier_wait_parity(free[i % stages], ((i // stages) & 1) ^ 1)
                    T.tma_copy(a[by * bm : (by + 1) * bm, i * bk : (i + 1) * bk], sa[i % stages, :, :], barrier=full[i % stages])
                    T.tma_copy(b[(bx * ctas + rank) * (bn // ctas) : (bx * ctas + rank + 1) * (bn // ctas), i * bk : (i + 1) * bk], sb[i % stages, :, :], barrier=full[i % stages])
                    T.mbarrier_arrive(full[i % stages], 0)
            elif rank == 0 and thread < 64:
                for i in T.serial(k // bk):
                    T.mbarrier_wait_parity(full[i % stages], (i // stages) & 1)
                    T.tcgen05_gemm(sa[i % stages, :, :], sb[i % stages, :, :], tmem, transpose_B=True, mbar=free[i % stages], clear_accum=i == 0, use_2cta=pair)
                T.tcgen05_mma_arrive(done, arrive_2cta=pair)
            T.mbarrier_wait_parity(done, 0)
            T.tcgen05_after_thread_sync()
            T.sync_threads()
            T.copy(tmem, acc)
            T.copy(acc, sc)
            T.copy(sc, c[by * bm, bx * bn])

    return kernel
