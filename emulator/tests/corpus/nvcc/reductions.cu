// Threads that work together: shuffles, votes, shared memory, atomics.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define KERNEL extern "C" __global__ void
namespace cg = cooperative_groups;

// Sum and maximum of an array: shuffles, then shared memory, then the last block adds up the blocks.
__device__ unsigned finished;
KERNEL reduce(const float* x, float* partial, float* out, int n) {
    __shared__ float sums[32], tops[32];
    __shared__ bool last;
    float sum = 0, top = -INFINITY;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += x[i];
        top = fmaxf(top, x[i]);
    }
    auto block = [&] {
        int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
        for (int d = 16; d; d >>= 1) {
            sum += __shfl_down_sync(~0u, sum, d);
            top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        }
        if (lane == 0) sums[warp] = sum, tops[warp] = top;
        __syncthreads();
        if (warp == 0) {
            sum = lane < warps ? sums[lane] : 0;
            top = lane < warps ? tops[lane] : -INFINITY;
            for (int d = 16; d; d >>= 1) {
                sum += __shfl_down_sync(~0u, sum, d);
                top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
            }
        }
    };
    block();
    if (threadIdx.x == 0) {
        partial[2 * blockIdx.x] = sum;
        partial[2 * blockIdx.x + 1] = top;
        __threadfence();
        last = atomicAdd(&finished, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    sum = threadIdx.x < gridDim.x ? __ldcg(&partial[2 * threadIdx.x]) : 0;
    top = threadIdx.x < gridDim.x ? __ldcg(&partial[2 * threadIdx.x + 1]) : -INFINITY;
    block();
    if (threadIdx.x == 0) {
        out[0] = sum;
        out[1] = top;
        // Not a plain store: nothing orders that after the other blocks' last addition.
        atomicExch(&finished, 0);
    }
}

// What a warp knows of itself: votes, matches, reductions in one instruction.
KERNEL warp_votes(const int* x, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i], all;
    unsigned lane = threadIdx.x & 31;
    int r[16] = {};
    r[0] = __ballot_sync(~0u, v & 1);
    r[1] = __any_sync(~0u, v == 3) * 2 + __all_sync(~0u, v < 60);
    r[2] = __match_any_sync(~0u, v & 7);
    r[3] = __match_all_sync(~0u, v >> 16, &all);
    r[3] ^= all << 3;
    r[4] = __reduce_add_sync(~0u, v);
    r[5] = __reduce_min_sync(~0u, v);
    r[6] = __reduce_max_sync(~0u, (unsigned)v);
    r[7] = __reduce_or_sync(~0u, v);
    r[8] = __shfl_sync(~0u, v, lane * 5, 8);
    r[9] = __shfl_up_sync(~0u, v, 3, 16);
    r[10] = (int)(__shfl_xor_sync(~0u, (long long)v << 20, 21) >> 20);
    if (v % 3 == 0) {
        // Some lanes only: those that are here talk to each other.
        unsigned here = __activemask(), mine = __ballot_sync(here, 1);
        int leader = __ffs(mine) - 1, base = __shfl_sync(mine, v, leader);
        r[11] = base * 100 + __popc(mine & ((1u << lane) - 1));
        __syncwarp(mine);
    }
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(r[12]));
    r[13] = __reduce_xor_sync(0xffffu << (lane & 16), v);
    __nanosleep(20);
    for (int k = 0; k < 14; k++) out[k * n + i] = r[k];
}

// One pass over the array: each block waits for its predecessors' sums.
struct Tile {
    cuda::atomic<uint64_t, cuda::thread_scope_device> state;  // flag in the upper half: 1 own sum, 2 sum up to here
};
KERNEL scan(const int* x, int* out, Tile* tiles, unsigned* ticket, int n) {
    __shared__ int warp_sums[8];
    __shared__ unsigned tile;
    __shared__ int before;
    if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
    __syncthreads();
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = tile * 256 + threadIdx.x;
    int v = i < n ? x[i] : 0;
    for (int d = 1; d < 32; d *= 2) {
        int o = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += o;
    }
    if (lane == 31) warp_sums[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; w++) v += warp_sums[w];
    if (threadIdx.x == 255) {
        tiles[tile].state.store(((tile ? 1ull : 2ull) << 32) | (unsigned)v, cuda::memory_order_release);
        int sum = 0;
        for (int t = (int)tile - 1; t >= 0; t--) {
            uint64_t s;
            while (!((s = tiles[t].state.load(cuda::memory_order_acquire)) >> 32)) __nanosleep(10);
            sum += (int)(uint32_t)s;
            if (s >> 32 == 2) break;
        }
        before = sum;
        if (tile) tiles[tile].state.store(2ull << 32 | (unsigned)(v + sum), cuda::memory_order_release);
    }
    __syncthreads();
    if (i < n) out[i] = v + before;
}

// A tile in shared memory, with a column of padding.
template <typename T>
__device__ void transposed(const T* x, T* out, int rows, int columns) {
    __shared__ T tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < columns && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * columns + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (c < rows && r + k < columns) out[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}
KERNEL transpose(const float* x, float* out, const short* y, short* yout, int rows, int columns) {
    transposed(x, out, rows, columns);
    transposed(y, yout, rows, columns);
}

// Counts in shared memory, added to those of the grid.
KERNEL histogram(const unsigned char* x, unsigned* out, int n) {
    extern __shared__ unsigned counts[];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) counts[k] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        uchar4 v = reinterpret_cast<const uchar4*>(x)[i];
        atomicAdd(&counts[v.x], 1);
        atomicAdd(&counts[v.y], 1);
        atomicAdd(&counts[v.z], 1);
        atomicAdd(&counts[v.w], 1);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 256; k += blockDim.x)
        if (counts[k]) atomicAdd(&out[k], counts[k]);
}

// Every atomic operation of the language, on cells that all threads share.
__device__ float max_by_exchange(float* cell, float v) {
    int* bits = reinterpret_cast<int*>(cell);
    int old = *(volatile int*)bits, seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= v) break;
        old = atomicCAS(bits, seen, __float_as_int(v));
    } while (old != seen);
    return __int_as_float(old);
}
KERNEL atomics(const int* x, int* words, unsigned long long* wide, float* floats, double* real, __half2* halves,
               __nv_bfloat162* bfloats, float4* quad, unsigned short* shorts, int* lock, int* order) {
    __shared__ int local[4];
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    if (threadIdx.x < 4) local[threadIdx.x] = threadIdx.x == 1 ? 1 << 30 : 0;
    __syncthreads();
    atomicAdd(&words[0], v);
    atomicSub(&words[1], v);
    atomicMin(&words[2], v);
    atomicMax(&words[3], v);
    atomicAnd(&words[4], v | 0xff00);
    atomicOr(&words[5], v & 0x0f0f);
    atomicXor(&words[6], v);
    atomicInc((unsigned*)&words[7], 99);
    atomicDec((unsigned*)&words[8], 77);
    atomicExch(&words[9], 5);
    atomicAdd_system(&words[10], 1);
    atomicAdd(&wide[0], (unsigned long long)v * v);
    atomicMax(&wide[1], (unsigned long long)v << 33);
    atomicXor(&wide[2], (unsigned long long)v << 21);
    atomicCAS(&wide[3], 0ull, 7ull);
    atomicAdd(&floats[0], (float)(v & 255));
    max_by_exchange(&floats[1], v * 0.5f);
    atomicAdd(&real[0], v * 0.25);
    atomicAdd(&halves[i & 1], __floats2half2_rn(0.5f, 1.0f));
    atomicAdd(&bfloats[i & 3], __floats2bfloat162_rn(0.25f, 0.5f));
    atomicAdd(&quad[0], make_float4(1, 2, v & 1, v & 2));
    atomicCAS(&shorts[i & 1], (unsigned short)0, (unsigned short)(i & 1 ? 3 : 9));
    atomicAdd_block(&local[0], v & 7);
    atomicMin(&local[1], v);
    cuda::atomic_ref<int, cuda::thread_scope_block>(local[2]).fetch_add(2, cuda::memory_order_relaxed);
    __syncthreads();
    if (threadIdx.x == 0) {
        // A lock, held by one block at a time.
        cuda::atomic_ref<int, cuda::thread_scope_device> l(*lock);
        int expected = 0;
        while (!l.compare_exchange_weak(expected, 1, cuda::memory_order_acquire)) expected = 0;
        int at = order[0]++;
        order[1 + at] = local[0];
        order[1 + gridDim.x + at] = local[1] + local[2];
        l.store(0, cuda::memory_order_release);
    }
}

// Cooperative groups: tiles of a warp, coalesced groups, labels, scans.
KERNEL groups(const int* x, int* out, int n) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    auto warp = cg::tiled_partition<32>(block);
    auto quarter = cg::tiled_partition<4>(tile);
    int i = cg::this_grid().thread_rank(), v = x[i];
    int r[10] = {};
    r[0] = cg::reduce(tile, v, cg::plus<int>());
    r[1] = cg::reduce(warp, v, cg::greater<int>());
    r[2] = cg::exclusive_scan(tile, v);
    r[3] = cg::inclusive_scan(warp, v, cg::bit_xor<int>());
    r[4] = quarter.shfl(v, 3) + (int)quarter.meta_group_rank();
    r[5] = tile.any(v > 90) + 2 * tile.all(v > 10);
    if (v & 1) {
        cg::coalesced_group odd = cg::coalesced_threads();
        r[6] = (int)(odd.size() * 1000 + odd.thread_rank());
        r[7] = odd.shfl(v, 0);
    }
    auto labels = cg::labeled_partition(warp, v % 3);
    r[8] = (int)labels.size();
    __shared__ int sums[4];
    if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = r[1];
    block.sync();
    r[9] = sums[(warp.meta_group_rank() + 1) % warp.meta_group_size()];
    cg::invoke_one(tile, [&] { r[9] += 1000000; });
    for (int k = 0; k < 10; k++) out[k * n + i] = r[k];
}
