"""Kernels in the CuTe DSL without matrix instructions. Sizes are constants of a case."""

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils

F16, F32 = cutlass.Float16, cutlass.Float32


class Axpy:
    """alpha x + y, an element a thread; alpha comes as an argument."""

    def __init__(self, n):
        self.n = n

    @cute.jit
    def __call__(self, x: cute.Pointer, y: cute.Pointer, out: cute.Pointer, alpha: F32):
        flat = cute.make_layout((self.n,))
        tensors = [cute.make_tensor(p, flat) for p in (x, y, out)]
        self.kernel(*tensors, alpha).launch(grid=(-(-self.n // 128), 1, 1), block=(128, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, alpha: F32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        i = block * 128 + thread
        if i < self.n:
            out[i] = x[i] * alpha + y[i]


class GeluVectors:
    """Gelu by tanh on f16, eight elements a thread: tiles by a layout of threads and values."""

    def __init__(self, m, n):
        self.m, self.n = m, n

    @cute.jit
    def __call__(self, x: cute.Pointer, out: cute.Pointer):
        layout = cute.make_layout((self.m, self.n), stride=(self.n, 1))
        tile, threads_values = cute.make_layout_tv(cute.make_layout((4, 32), stride=(32, 1)), cute.make_layout((1, 8), stride=(8, 1)))
        tx, tout = (cute.zipped_divide(cute.make_tensor(p, layout), tile) for p in (x, out))
        self.kernel(tx, tout, threads_values).launch(grid=(cute.size(tx, mode=[1]), 1, 1), block=(128, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor, threads_values: cute.Layout):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        mine = cute.composition(x[(None, block)], threads_values)[(thread, None)]
        to = cute.composition(out[(None, block)], threads_values)[(thread, None)]
        v = mine.load().to(F32)
        inner = (v + v * v * v * 0.044715) * 0.7978845608
        to.store((v * 0.5 * (cute.math.tanh(inner) + 1.0)).to(F16))


class Softmax:
    """A row a block: reductions by shuffles in the warps, and by shared memory between them."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns

    @cute.jit
    def __call__(self, x: cute.Pointer, out: cute.Pointer):
        layout = cute.make_layout((self.rows, self.columns), stride=(self.columns, 1))
        self.kernel(cute.make_tensor(x, layout), cute.make_tensor(out, layout)).launch(grid=(self.rows, 1, 1), block=(128, 1, 1), smem=64)

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        smem = utils.SmemAllocator()
        tops = smem.allocate_tensor(F32, cute.make_layout((4,)), byte_alignment=16)
        totals = smem.allocate_tensor(F32, cute.make_layout((4,)), byte_alignment=16)
        top = -F32.inf
        for i in cutlass.range(thread, self.columns, 128):
            top = cute.arch.fmax(top, x[row, i])
        for step in cutlass.range_constexpr(5):
            top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, 1 << step))
        if thread % 32 == 0:
            tops[thread // 32] = top
        cute.arch.sync_threads()
        for w in cutlass.range_constexpr(4):
            top = cute.arch.fmax(top, tops[w])
        total = F32(0.0)
        for i in cutlass.range(thread, self.columns, 128):
            total += cute.math.exp(x[row, i] - top)
        for step in cutlass.range_constexpr(5):
            total += cute.arch.shuffle_sync_bfly(total, 1 << step)
        if thread % 32 == 0:
            totals[thread // 32] = total
        cute.arch.sync_threads()
        total = totals[0] + totals[1] + totals[2] + totals[3]
        for i in cutlass.range(thread, self.columns, 128):
            out[row, i] = cute.math.exp(x[row, i] - top) / total


class Transpose:
    """Tiles of 32 x 32 through shared memory with a column of padding."""

    def __init__(self, m, n):
        self.m, self.n = m, n

    @cute.jit
    def __call__(self, x: cute.Pointer, out: cute.Pointer):
        a = cute.make_tensor(x, cute.make_layout((self.m, self.n), stride=(self.n, 1)))
        b = cute.make_tensor(out, cute.make_layout((self.n, self.m), stride=(self.m, 1)))
        self.kernel(a, b).launch(grid=(self.n // 32, self.m // 32, 1), block=(32, 8, 1), smem=32 * 33 * 4)

    @cute.kernel
    def kernel(self, x: cute.Tensor, out: cute.Tensor):
        lane, row, _ = cute.arch.thread_idx()
        bx, by, _ = cute.arch.block_idx()
        smem = utils.SmemAllocator()
        tile = smem.allocate_tensor(F32, cute.make_layout((32, 32), stride=(33, 1)), byte_alignment=16)
        for i in cutlass.range_constexpr(4):
            tile[row + i * 8, lane] = x[by * 32 + row + i * 8, bx * 32 + lane]
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(4):
            out[bx * 32 + row + i * 8, by * 32 + lane] = tile[lane, row + i * 8]
