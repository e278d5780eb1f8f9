"""Products in Gluon for sm_100a: C = A B^T, f16 with f32 sums, B as rows of K. Sizes are constants of a case.

CGA, of A, B and C, says how the CTAs of a cluster share a tile, a pair for each bit of the rank but for the first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout, allocate_tensor_memory, fence_async_shared, mbarrier, tcgen05_commit, tcgen05_copy, tcgen05_mma, tcgen05_mma_scaled, tma)

from versions import accumulator, barriers, clc, load, read, scale_layout, settle, store


@gluon.jit
def one(a, b, c, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, CGA: gl.constexpr):
    """One CTA a tile, all warps alike: a tile of K is loaded, multiplied, and waited for."""
    m = gl.program_id(0) * BM
    n = gl.program_id(1) * BN
    sa = gl.allocate_shared_memory(gl.float16, [BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [BN, BK], b.layout)
    full = barriers(1)
    done = barriers(1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full.index(0), (BM + BN) * BK * 2)
        load(a, [m, k], full.index(0), sa)
        load(b, [n, k], full.index(0), sb)
        mbarrier.wait(full.index(0), phase)
        tcgen05_mma(sa, sb.permute((1, 0)), sums, use_acc=k > 0)
        tcgen05_commit(done.index(0))
        mbarrier.wait(done.index(0), phase)
        phase ^= 1
    mbarrier.invalidate(full.index(0))
    mbarrier.invalidate(done.index(0))
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    sc.store(read(sums, BM, BN, CGA).to(gl.float16))
    fence_async_shared()
    store(c, [m, n], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def split_loads(a, b, m, n, sa, sb, full, free, K: gl.constexpr, BK: gl.constexpr, BYTES: gl.constexpr, STAGES: gl.constexpr, MULTICAST: gl.constexpr):
    for i in range(K // BK):
        at = i % STAGES
        mbarrier.wait(free.index(at), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(at), BYTES)
        if MULTICAST:
            load(a, [m, i * BK], full.index(at), sa.index(at), multicast=True)
            load(b, [n, i * BK], full.index(at), sb.index(at), multicast=True)
        else:
            load(a, [m, i * BK], full.index(at), sa.index(at))
            load(b, [n, i * BK], full.index(at), sb.index(at))
    # What the products of other CTAs hand back must not come after the mbarriers are gone.
    for i in range(K // BK, K // BK + STAGES):
        mbarrier.wait(free.index(i % STAGES), (i // STAGES & 1) ^ 1)


@gluon.jit
def split_products(sa, sb, sums, full, free, done, K: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, MULTICAST: gl.constexpr):
    for i in range(K // BK):
        at = i % STAGES
        mbarrier.wait(full.index(at), i // STAGES & 1)
        if MULTICAST:
            tcgen05_mma(sa.index(at), sb.index(at).permute((1, 0)), sums, use_acc=i > 0, mbarriers=[free.index(at)], multicast=True)
        else:
            tcgen05_mma(sa.index(at), sb.index(at).permute((1, 0)), sums, use_acc=i > 0, mbarriers=[free.index(at)])
    tcgen05_commit(done.index(0))


@gluon.jit
def split_stores(c, m, n, sums, done, BM: gl.constexpr, BN: gl.constexpr, CGA: gl.constexpr):
    mbarrier.wait(done.index(0), 0)
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    sc.store(read(sums, BM, BN, CGA).to(gl.float16))
    fence_async_shared()
    store(c, [m, n], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def partitions(a, b, c, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, CGA: gl.constexpr,
               BYTES: gl.constexpr, FREE: gl.constexpr, MULTICAST: gl.constexpr):
    """A tile for each cluster, by three partitions: a warp loads, a warp multiplies, four store."""
    PAIR: gl.constexpr = len(CGA) > 0
    m = gl.program_id(0) * BM
    n = gl.program_id(1) * BN
    sa = gl.allocate_shared_memory(gl.float16, [STAGES, BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [STAGES, BN, BK], b.layout)
    full = barriers(STAGES, two_ctas=PAIR)
    free = barriers(STAGES)
    done = barriers(1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=FREE)
    mbarrier.init(done.index(0), count=1)
    if PAIR:
        settle()
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    gl.warp_specialize([
        (split_stores, (c, m, n, sums, done, BM, BN, CGA)),
        (split_loads, (a, b, m, n, sa, sb, full, free, K, BK, BYTES, STAGES, MULTICAST)),
        (split_products, (sa, sb, sums, full, free, done, K, BK, STAGES, MULTICAST)),
    ], [1, 1], [24, 24])
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(free.index(i))
    mbarrier.invalidate(done.index(0))


@gluon.jit
def stream_loads(a, b, sa, sb, full, free, N: gl.constexpr, TILES: gl.constexpr, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, BYTES: gl.constexpr, STAGES: gl.constexpr):
    i = 0
    for tile in range(gl.program_id(0), TILES, gl.num_programs(0)):
        m = tile // (N // BN) * BM
        n = tile % (N // BN) * BN
        for k in range(0, K, BK):
            at = i % STAGES
            mbarrier.wait(free.index(at), (i // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(at), BYTES)
            load(a, [m, k], full.index(at), sa.index(at))
            load(b, [n, k], full.index(at), sb.index(at))
            i += 1


@gluon.jit
def stream_products(sa, sb, sums, full, free, ready, taken, TILES: gl.constexpr, K: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr):
    i = 0
    t = 0
    for tile in range(gl.program_id(0), TILES, gl.num_programs(0)):
        mbarrier.wait(taken.index(t & 1), (t // 2 & 1) ^ 1)
        for k in range(0, K, BK):
            at = i % STAGES
            mbarrier.wait(full.index(at), i // STAGES & 1)
            tcgen05_mma(sa.index(at), sb.index(at).permute((1, 0)), sums.index(t & 1), use_acc=k > 0, mbarriers=[free.index(at)])
            i += 1
        tcgen05_commit(ready.index(t & 1))
        t += 1


@gluon.jit
def stream_stores(c, sums, ready, taken, N: gl.constexpr, TILES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, CGA: gl.constexpr):
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    t = 0
    for tile in range(gl.program_id(0), TILES, gl.num_programs(0)):
        mbarrier.wait(ready.index(t & 1), t // 2 & 1)
        values = read(sums.index(t & 1), BM, BN, CGA).to(gl.float16)
        mbarrier.arrive(taken.index(t & 1), count=1)
        tma.store_wait(pendings=0)
        sc.store(values)
        fence_async_shared()
        store(c, [tile // (N // BN) * BM, tile % (N // BN) * BN], sc)
        t += 1
    tma.store_wait(pendings=0)


@gluon.jit
def stream(a, b, c, N: gl.constexpr, TILES: gl.constexpr, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
           CGA: gl.constexpr, BYTES: gl.constexpr):
    """Persistent: a cluster takes every so many tiles, two accumulators let the next tile begin while one is stored."""
    PAIR: gl.constexpr = len(CGA) > 0
    sa = gl.allocate_shared_memory(gl.float16, [STAGES, BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [STAGES, BN, BK], b.layout)
    full = barriers(STAGES, two_ctas=PAIR)
    free = barriers(STAGES)
    ready = barriers(2)
    taken = barriers(2, two_ctas=PAIR)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(taken.index(i), count=1)
    if PAIR:
        settle()
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [2, BM, BN], layout)
    gl.warp_specialize([
        (stream_stores, (c, sums, ready, taken, N, TILES, BM, BN, CGA)),
        (stream_loads, (a, b, sa, sb, full, free, N, TILES, K, BM, BN, BK, BYTES, STAGES)),
        (stream_products, (sa, sb, sums, full, free, ready, taken, TILES, K, BK, STAGES)),
    ], [1, 1], [24, 24])


@gluon.jit
def pair_alike(a, b, c, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, CGA: gl.constexpr, BYTES: gl.constexpr):
    """A pair of CTAs without partitions: a tile of K is loaded, multiplied, and waited for."""
    m = gl.program_id(0) * BM
    n = gl.program_id(1) * BN
    sa = gl.allocate_shared_memory(gl.float16, [BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [BN, BK], b.layout)
    full = barriers(1, two_ctas=True)
    done = barriers(1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    settle()
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full.index(0), BYTES)
        load(a, [m, k], full.index(0), sa)
        load(b, [n, k], full.index(0), sb)
        mbarrier.wait(full.index(0), phase)
        tcgen05_mma(sa, sb.permute((1, 0)), sums, use_acc=k > 0, mbarriers=[done.index(0)])
        mbarrier.wait(done.index(0), phase)
        phase ^= 1
    mbarrier.invalidate(full.index(0))
    mbarrier.invalidate(done.index(0))
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    sc.store(read(sums, BM, BN, CGA).to(gl.float16))
    fence_async_shared()
    store(c, [m, n], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def tensor_memory_a(a, b, c, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, CGA: gl.constexpr):
    """A goes through registers to tensor memory, and is an operand from there."""
    m = gl.program_id(0) * BM
    n = gl.program_id(1) * BN
    sa = gl.allocate_shared_memory(gl.float16, [BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [BN, BK], b.layout)
    full = barriers(1)
    done = barriers(1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    operand: gl.constexpr = TensorMemoryLayout((BM, BK), col_stride=1)
    ta = allocate_tensor_memory(gl.float16, [BM, BK], operand)
    rows: gl.constexpr = gl.BlockedLayout([1, BK], [32, 1], [gl.num_warps(), 1], [1, 0])
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full.index(0), (BM + BN) * BK * 2)
        load(a, [m, k], full.index(0), sa)
        load(b, [n, k], full.index(0), sb)
        mbarrier.wait(full.index(0), phase)
        ta.store(sa.load(rows))
        tcgen05_mma(ta, sb.permute((1, 0)), sums, use_acc=k > 0, mbarriers=[done.index(0)])
        mbarrier.wait(done.index(0), phase)
        phase ^= 1
    mbarrier.invalidate(full.index(0))
    mbarrier.invalidate(done.index(0))
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    sc.store(read(sums, BM, BN, CGA).to(gl.float16))
    fence_async_shared()
    store(c, [m, n], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def stolen(a, b, c, N: gl.constexpr, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, CGA: gl.constexpr):
    """A CTA takes the tiles of others that have not begun, by launch control."""
    sa = gl.allocate_shared_memory(gl.float16, [BM, BK], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [BN, BK], b.layout)
    sc = gl.allocate_shared_memory(gl.float16, [BM, BN], c.layout)
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = barriers(1)
    done = barriers(1)
    told = barriers(1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    mbarrier.init(told.index(0), count=1)
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    phase = 0
    round = 0
    tile = gl.program_id(0)
    more = gl.to_tensor(True)
    while more:
        mbarrier.expect(told.index(0), 16)
        clc.try_cancel(answer, told.index(0))
        m = tile // (N // BN) * BM
        n = tile % (N // BN) * BN
        for k in range(0, K, BK):
            mbarrier.expect(full.index(0), (BM + BN) * BK * 2)
            load(a, [m, k], full.index(0), sa)
            load(b, [n, k], full.index(0), sb)
            mbarrier.wait(full.index(0), phase)
            tcgen05_mma(sa, sb.permute((1, 0)), sums, use_acc=k > 0, mbarriers=[done.index(0)])
            mbarrier.wait(done.index(0), phase)
            phase ^= 1
        tma.store_wait(pendings=0)
        sc.store(read(sums, BM, BN, CGA).to(gl.float16))
        fence_async_shared()
        store(c, [m, n], sc)
        mbarrier.wait(told.index(0), round & 1)
        result = clc.load_result(answer)
        more = result.is_canceled()
        tile = result.program_id(0)
        round += 1
    tma.store_wait(pendings=0)


@gluon.jit
def blocks(scales, ROWS: gl.constexpr, COUNT: gl.constexpr):
    """Scale factors in 512-byte blocks of 128 rows and 4 columns, as a matrix."""
    view = scales.reshape((ROWS // 128, COUNT // 4, 32, 4, 4)).permute((0, 3, 2, 1, 4))
    return view.reshape((ROWS, COUNT))


@gluon.jit
def scaled(a, sfa, b, sfb, c, K: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, CGA: gl.constexpr, FORMAT: gl.constexpr, BLOCK: gl.constexpr, BYTES: gl.constexpr, PAIR: gl.constexpr):
    """Block scales, copied to tensor memory by tcgen05.cp; C is f32."""
    PACK: gl.constexpr = 2 if FORMAT == "e2m1" else 1
    COUNT: gl.constexpr = BK // BLOCK
    m = gl.program_id(0) * BM
    n = gl.program_id(1) * BN
    sa = gl.allocate_shared_memory(a.dtype, [BM, BK // PACK], a.layout)
    sb = gl.allocate_shared_memory(b.dtype, [BN, BK // PACK], b.layout)
    ssa = gl.allocate_shared_memory(sfa.dtype, [1, BM // 128, COUNT // 4, 2, 256], sfa.layout)
    ssb = gl.allocate_shared_memory(sfb.dtype, [1, BN // 128, COUNT // 4, 2, 256], sfb.layout)
    full = barriers(1, two_ctas=PAIR)
    done = barriers(1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    if PAIR:
        settle()
    layout: gl.constexpr = accumulator(BM, BN, CGA)
    sums = allocate_tensor_memory(gl.float32, [BM, BN], layout)
    layout_a: gl.constexpr = scale_layout(CGA, False)
    layout_b: gl.constexpr = scale_layout(CGA, True)
    ta = allocate_tensor_memory(sfa.dtype, [BM, COUNT], layout_a)
    tb = allocate_tensor_memory(sfb.dtype, [BN, COUNT], layout_b)
    phase = 0
    for k in range(0, K // BK):
        mbarrier.expect(full.index(0), BYTES)
        load(a, [m, k * (BK // PACK)], full.index(0), sa)
        load(b, [n, k * (BK // PACK)], full.index(0), sb)
        load(sfa, [0, m // 128, k * (COUNT // 4), 0, 0], full.index(0), ssa)
        load(sfb, [0, n // 128, k * (COUNT // 4), 0, 0], full.index(0), ssb)
        mbarrier.wait(full.index(0), phase)
        tcgen05_copy(blocks(ssa, BM, COUNT), ta)
        tcgen05_copy(blocks(ssb, BN, COUNT), tb)
        tcgen05_mma_scaled(sa, sb.permute((1, 0)), sums, ta, tb, FORMAT, FORMAT, use_acc=k > 0, mbarriers=[done.index(0)])
        mbarrier.wait(done.index(0), phase)
        phase ^= 1
    mbarrier.invalidate(full.index(0))
    mbarrier.invalidate(done.index(0))
    sc = gl.allocate_shared_memory(gl.float32, [BM, BN], c.layout)
    sc.store(read(sums, BM, BN, CGA))
    fence_async_shared()
    store(c, [m, n], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def softmax(x, y, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """A row for each cluster, whose CTAs share its columns."""
    i = gl.arange(0, COLUMNS, LAYOUT)
    v = gl.load(x + gl.program_id(0) * COLUMNS + i)
    e = gl.exp(v - gl.max(v, 0))
    gl.store(y + gl.program_id(0) * COLUMNS + i, e / gl.sum(e, 0))
