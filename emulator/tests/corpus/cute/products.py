"""Products of matrices in the CuTe DSL: C = A B^T, f16 with f32 sums. Sizes are constants of a case."""

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.blackwell_helpers as blackwell
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import cpasync, tcgen05, warpgroup

F16, F32 = cutlass.Float16, cutlass.Float32


def matrix(pointer, rows, columns):
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))


class Blackwell:
    """tcgen05: warp 0 loads, warp 1 multiplies, four more store."""

    def __init__(self, m, n, k, tile, stages):
        self.m, self.n, self.k, self.tile, self.stages = m, n, k, tile, stages

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer):
        ma, mb, mc = matrix(a, self.m, self.k), matrix(b, self.n, self.k), matrix(c, self.m, self.n)
        k_major = tcgen05.OperandMajorMode.K
        op = tcgen05.MmaF16BF16Op(F16, F32, (*self.tile[:2], 16), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, k_major, k_major)
        mma = cute.make_tiled_mma(op)
        la = blackwell.make_smem_layout_a(mma, self.tile, F16, self.stages)
        lb = blackwell.make_smem_layout_b(mma, self.tile, F16, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        atom_a, ta = cute.nvgpu.make_tiled_tma_atom_A(load, ma, cute.select(la, mode=[0, 1, 2]), self.tile, mma)
        atom_b, tb = cute.nvgpu.make_tiled_tma_atom_B(load, mb, cute.select(lb, mode=[0, 1, 2]), self.tile, mma)
        grid = (self.m // self.tile[0], self.n // self.tile[1], 1)
        self.kernel(mma, atom_a, ta, atom_b, tb, mc, la, lb).launch(grid=grid, block=(192, 1, 1))

    @cute.kernel
    def kernel(self, mma: cute.TiledMma, atom_a: cute.CopyAtom, ta: cute.Tensor, atom_b: cute.CopyAtom, tb: cute.Tensor, mc: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        stages = self.stages

        @cute.struct
        class Storage:
            tiles: cute.struct.MemRange[cutlass.Int64, stages * 2]
            sums: cute.struct.MemRange[cutlass.Int64, 2]
            tmem: cutlass.Int32

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sa = smem.allocate_tensor(element_type=F16, layout=la.outer, byte_alignment=1024, swizzle=la.inner)
        sb = smem.allocate_tensor(element_type=F16, layout=lb.outer, byte_alignment=1024, swizzle=lb.inner)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        size = cute.size_in_bytes(F16, cute.select(la, mode=[0, 1, 2])) + cute.size_in_bytes(F16, cute.select(lb, mode=[0, 1, 2]))
        producer, consumer = pipeline.PipelineTmaUmma.create(
            num_stages=stages, producer_group=one, consumer_group=one, tx_count=size, barrier_storage=storage.tiles.data_ptr()
        ).make_participants()
        done, ready = pipeline.PipelineUmmaAsync.create(
            num_stages=1, producer_group=one, consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 128), barrier_storage=storage.sums.data_ptr()
        ).make_participants()
        tmem = utils.TmemAllocator(storage.tmem.ptr, barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=160), allocator_warp_id=1)

        coordinates = (row, column, None)
        ga = cute.local_tile(ta, self.tile, coordinates, proj=(1, None, 1))
        gb = cute.local_tile(tb, self.tile, coordinates, proj=(None, 1, 1))
        gc = cute.local_tile(mc, self.tile, coordinates, proj=(1, 1, None))
        part = mma.get_slice(0)
        pa, pb, pc = part.partition_A(ga), part.partition_B(gb), part.partition_C(gc)
        to_a, from_a = cpasync.tma_partition(atom_a, 0, cute.make_layout(1), cute.group_modes(sa, 0, 3), cute.group_modes(pa, 0, 3))
        to_b, from_b = cpasync.tma_partition(atom_b, 0, cute.make_layout(1), cute.group_modes(sb, 0, 3), cute.group_modes(pb, 0, 3))
        fa, fb = mma.make_fragment_A(sa), mma.make_fragment_B(sb)
        shape = mma.make_fragment_C(mma.partition_shape_C(self.tile[:2])).layout
        tiles = self.k // self.tile[2]

        if warp == 0:
            for _ in cutlass.range(tiles):
                free = producer.acquire_and_advance()
                cute.copy(atom_a, from_a[(None, free.count)], to_a[(None, free.index)], tma_bar_ptr=free.barrier)
                cute.copy(atom_b, from_b[(None, free.count)], to_b[(None, free.index)], tma_bar_ptr=free.barrier)
        else:
            tmem.allocate(128)
            tmem.wait_for_alloc()
            pointer = tmem.retrieve_ptr(F32)
            acc = cute.make_tensor(pointer, shape)
            if warp == 1:
                room = done.acquire_and_advance()
                for _ in cutlass.range(tiles):
                    full = consumer.wait_and_advance()
                    for block in cutlass.range_constexpr(cute.size(fa, mode=[2])):
                        at = (None, None, block, full.index)
                        cute.gemm(mma, acc, fa[at], fb[at], acc)
                        mma.set(tcgen05.Field.ACCUMULATE, True)
                    full.release()
                room.commit()
            else:
                piece = (self.tile[0], 32)
                tiled_acc = cute.zipped_divide(acc, (piece,))
                tiled_out = cute.zipped_divide(pc, (piece,))
                atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), F32)
                copy = tcgen05.make_tmem_copy(atom, tiled_acc[None, 0])
                # A warp reaches the quarter of its number modulo four.
                mine = copy.get_slice(thread % 128)
                source, target = mine.partition_S(tiled_acc), mine.partition_D(tiled_out)
                full = ready.wait_and_advance()
                for i in cutlass.range(cute.size(source, mode=[2])):
                    values = cute.make_rmem_tensor(target[None, None, 0].shape, F32)
                    out = cute.make_rmem_tensor(target[None, None, 0].shape, F16)
                    cute.copy(copy, source[None, None, i], values)
                    cute.arch.fence_view_async_tmem_load()
                    out.store(values.load().to(F16))
                    cute.autovec_copy(out, target[None, None, i])
                full.release()
            pipeline.NamedBarrier(barrier_id=1, num_threads=160).arrive_and_wait()
            tmem.relinquish_alloc_permit()
            tmem.free(pointer)


class BlackwellPairs:
    """tcgen05 by pairs of CTAs: `ctas` of a cluster lie along M, and B's tile is multicast to the pairs."""

    def __init__(self, m, n, k, tile, stages, ctas):
        self.m, self.n, self.k, self.tile, self.stages, self.ctas = m, n, k, tile, stages, ctas

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer):
        ma, mb, mc = matrix(a, self.m, self.k), matrix(b, self.n, self.k), matrix(c, self.m, self.n)
        k_major = tcgen05.OperandMajorMode.K
        op = tcgen05.MmaF16BF16Op(F16, F32, (*self.tile[:2], 16), tcgen05.CtaGroup.TWO, tcgen05.OperandSource.SMEM, k_major, k_major)
        mma = cute.make_tiled_mma(op)
        la = blackwell.make_smem_layout_a(mma, self.tile, F16, self.stages)
        lb = blackwell.make_smem_layout_b(mma, self.tile, F16, self.stages)
        cluster = cute.tiled_divide(cute.make_layout((self.ctas, 1, 1)), (mma.thr_id.shape,))
        load_a = blackwell.cluster_shape_to_tma_atom_A((self.ctas, 1), mma.thr_id)
        load_b = blackwell.cluster_shape_to_tma_atom_B((self.ctas, 1), mma.thr_id)
        atom_a, ta = cute.nvgpu.make_tiled_tma_atom_A(load_a, ma, cute.select(la, mode=[0, 1, 2]), self.tile, mma, cluster.shape)
        atom_b, tb = cute.nvgpu.make_tiled_tma_atom_B(load_b, mb, cute.select(lb, mode=[0, 1, 2]), self.tile, mma, cluster.shape)
        grid = (self.m // self.tile[0] * 2, self.n // self.tile[1], 1)
        self.kernel(mma, atom_a, ta, atom_b, tb, mc, la, lb, cluster).launch(grid=grid, block=(192, 1, 1), cluster=(self.ctas, 1, 1))

    @cute.kernel
    def kernel(self, mma: cute.TiledMma, atom_a: cute.CopyAtom, ta: cute.Tensor, atom_b: cute.CopyAtom, tb: cute.Tensor, mc: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout, cluster: cute.Layout):
        thread, _, _ = cute.arch.thread_idx()
        x, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = cluster.get_flat_coord(rank)
        half = x % 2
        row = x // 2
        stages = self.stages

        @cute.struct
        class Storage:
            tiles: cute.struct.MemRange[cutlass.Int64, stages * 2]
            sums: cute.struct.MemRange[cutlass.Int64, 2]
            freed: cutlass.Int64
            tmem: cutlass.Int32

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sa = smem.allocate_tensor(element_type=F16, layout=la.outer, byte_alignment=1024, swizzle=la.inner)
        sb = smem.allocate_tensor(element_type=F16, layout=lb.outer, byte_alignment=1024, swizzle=lb.inner)
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        # Products of each pair that takes B's tile hand a stage back.
        pairs = pipeline.CooperativeGroup(pipeline.Agent.Thread, self.ctas // 2)
        size = 2 * (cute.size_in_bytes(F16, cute.select(la, mode=[0, 1, 2])) + cute.size_in_bytes(F16, cute.select(lb, mode=[0, 1, 2])))
        producer, consumer = pipeline.PipelineTmaUmma.create(
            num_stages=stages, producer_group=one, consumer_group=pairs, tx_count=size, barrier_storage=storage.tiles.data_ptr(), cta_layout_vmnk=cluster
        ).make_participants()
        done, ready = pipeline.PipelineUmmaAsync.create(
            num_stages=1, producer_group=one, consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 256), barrier_storage=storage.sums.data_ptr(), cta_layout_vmnk=cluster
        ).make_participants()
        tmem = utils.TmemAllocator(
            storage.tmem.ptr, barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=160), allocator_warp_id=1, is_two_cta=True, two_cta_tmem_dealloc_mbar_ptr=storage.freed.ptr)
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()

        coordinates = (row, column, None)
        ga = cute.local_tile(ta, self.tile, coordinates, proj=(1, None, 1))
        gb = cute.local_tile(tb, self.tile, coordinates, proj=(None, 1, 1))
        gc = cute.local_tile(mc, self.tile, coordinates, proj=(1, 1, None))
        part = mma.get_slice(half)
        pa, pb, pc = part.partition_A(ga), part.partition_B(gb), part.partition_C(gc)
        alone = cute.make_layout(cute.slice_(cluster, (0, 0, None, 0)).shape)
        along = cute.make_layout(cute.slice_(cluster, (0, None, 0, 0)).shape)
        to_a, from_a = cpasync.tma_partition(atom_a, place[2], alone, cute.group_modes(sa, 0, 3), cute.group_modes(pa, 0, 3))
        to_b, from_b = cpasync.tma_partition(atom_b, place[1], along, cute.group_modes(sb, 0, 3), cute.group_modes(pb, 0, 3))
        mask_a = cpasync.create_tma_multicast_mask(cluster, place, mcast_mode=2)
        mask_b = cpasync.create_tma_multicast_mask(cluster, place, mcast_mode=1)
        fa, fb = mma.make_fragment_A(sa), mma.make_fragment_B(sb)
        shape = mma.make_fragment_C(mma.partition_shape_C(self.tile[:2])).layout
        tiles = self.k // self.tile[2]

        if warp == 0:
            for _ in cutlass.range(tiles):
                free = producer.acquire_and_advance()
                cute.copy(atom_a, from_a[(None, free.count)], to_a[(None, free.index)], tma_bar_ptr=free.barrier, mcast_mask=mask_a)
                cute.copy(atom_b, from_b[(None, free.count)], to_b[(None, free.index)], tma_bar_ptr=free.barrier, mcast_mask=mask_b)
            producer.tail()
        else:
            tmem.allocate(128)
            tmem.wait_for_alloc()
            pointer = tmem.retrieve_ptr(F32)
            acc = cute.make_tensor(pointer, shape)
            if warp == 1:
                if half == 0:
                    room = done.acquire_and_advance()
                    for _ in cutlass.range(tiles):
                        full = consumer.wait_and_advance()
                        for block in cutlass.range_constexpr(cute.size(fa, mode=[2])):
                            at = (None, None, block, full.index)
                            cute.gemm(mma, acc, fa[at], fb[at], acc)
                            mma.set(tcgen05.Field.ACCUMULATE, True)
                        full.release()
                    room.commit()
            else:
                piece = (self.tile[0] // 2, 32)
                tiled_acc = cute.zipped_divide(acc, (piece,))
                tiled_out = cute.zipped_divide(pc, (piece,))
                atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), F32)
                copy = tcgen05.make_tmem_copy(atom, tiled_acc[None, 0])
                # A warp reaches the quarter of its number modulo four.
                mine = copy.get_slice(thread % 128)
                source, target = mine.partition_S(tiled_acc), mine.partition_D(tiled_out)
                full = ready.wait_and_advance()
                for i in cutlass.range(cute.size(source, mode=[2])):
                    values = cute.make_rmem_tensor(target[None, None, 0].shape, F32)
                    out = cute.make_rmem_tensor(target[None, None, 0].shape, F16)
                    cute.copy(copy, source[None, None, i], values)
                    cute.arch.fence_view_async_tmem_load()
                    out.store(values.load().to(F16))
                    cute.autovec_copy(out, target[None, None, i])
                full.release()
            pipeline.NamedBarrier(barrier_id=1, num_threads=160).arrive_and_wait()
            tmem.relinquish_alloc_permit()
            tmem.free(pointer)


class Hopper:
    """wgmma: a warp that loads, a warpgroup that multiplies and stores."""

    def __init__(self, m, n, k, tile, stages):
        self.m, self.n, self.k, self.tile, self.stages = m, n, k, tile, stages

    @cute.jit
    def __call__(self, a: cute.Pointer, b: cute.Pointer, c: cute.Pointer):
        ma, mb, mc = matrix(a, self.m, self.k), matrix(b, self.n, self.k), matrix(c, self.m, self.n)
        k_major = warpgroup.OperandMajorMode.K
        mma = hopper.make_trivial_tiled_mma(F16, F16, k_major, k_major, F32, (1, 1, 1), (64, self.tile[1]))
        rows = utils.LayoutEnum.ROW_MAJOR
        la = hopper.make_smem_layout_a(rows, self.tile, F16, self.stages)
        lb = hopper.make_smem_layout_b(utils.LayoutEnum.from_tensor(mb), self.tile, F16, self.stages)
        load = cpasync.CopyBulkTensorTileG2SOp()
        atom_a, ta = cpasync.make_tiled_tma_atom(load, ma, cute.slice_(la, (None, None, 0)), (self.tile[0], self.tile[2]))
        atom_b, tb = cpasync.make_tiled_tma_atom(load, mb, cute.slice_(lb, (None, None, 0)), (self.tile[1], self.tile[2]))
        grid = (self.m // self.tile[0], self.n // self.tile[1], 1)
        self.kernel(mma, atom_a, ta, atom_b, tb, mc, la, lb).launch(grid=grid, block=(160, 1, 1))

    @cute.kernel
    def kernel(self, mma: cute.TiledMma, atom_a: cute.CopyAtom, ta: cute.Tensor, atom_b: cute.CopyAtom, tb: cute.Tensor, mc: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        stages = self.stages

        @cute.struct
        class Storage:
            tiles: cute.struct.MemRange[cutlass.Int64, stages * 2]

        smem = utils.SmemAllocator()
        storage = smem.allocate(Storage)
        sa = smem.allocate_tensor(element_type=F16, layout=la.outer, byte_alignment=1024, swizzle=la.inner)
        sb = smem.allocate_tensor(element_type=F16, layout=lb.outer, byte_alignment=1024, swizzle=lb.inner)
        one_a, one_b = cute.slice_(la, (None, None, 0)), cute.slice_(lb, (None, None, 0))
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=stages, producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
            tx_count=cute.size_in_bytes(F16, one_a) + cute.size_in_bytes(F16, one_b), barrier_storage=storage.tiles.data_ptr(),
        ).make_participants()
        ga = cute.local_tile(ta, (self.tile[0], self.tile[2]), (row, None))
        gb = cute.local_tile(tb, (self.tile[1], self.tile[2]), (column, None))
        gc = cute.local_tile(mc, self.tile[:2], (row, column))
        to_a, from_a = cpasync.tma_partition(atom_a, 0, cute.make_layout(1), cute.group_modes(sa, 0, 2), cute.group_modes(ga, 0, 2))
        to_b, from_b = cpasync.tma_partition(atom_b, 0, cute.make_layout(1), cute.group_modes(sb, 0, 2), cute.group_modes(gb, 0, 2))
        tiles = self.k // self.tile[2]
        if warp == 4:
            for _ in cutlass.range(tiles):
                free = producer.acquire_and_advance()
                cute.copy(atom_a, from_a[(None, free.count)], to_a[(None, free.index)], tma_bar_ptr=free.barrier)
                cute.copy(atom_b, from_b[(None, free.count)], to_b[(None, free.index)], tma_bar_ptr=free.barrier)
        else:
            group = mma.get_slice(0)
            fa, fb = mma.make_fragment_A(group.partition_A(sa)), mma.make_fragment_B(group.partition_B(sb))
            target = mma.get_slice(thread).partition_C(gc)
            acc = cute.make_rmem_tensor(target.shape, F32)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for _ in cutlass.range(tiles):
                full = consumer.wait_and_advance()
                warpgroup.fence()
                for block in cutlass.range_constexpr(cute.size(fa, mode=[2])):
                    at = (None, None, block, full.index)
                    cute.gemm(mma, acc, fa[at], fb[at], acc)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                full.release()
            out = cute.make_rmem_tensor(target.shape, F16)
            out.store(acc.load().to(F16))
            cute.autovec_copy(out, target)
