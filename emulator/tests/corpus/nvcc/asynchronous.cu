// Copies that run beside the threads: cp.async, barriers, TMA, clusters, dependent launches.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda_pipeline.h>
#include <stdint.h>

#define KERNEL extern "C" __global__ void
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Tiles through three stages of cp.async; the last tile is short and filled with zeros.
KERNEL pipelined(const float* x, const float* weights, float* out, int tiles, int n) {
    __shared__ alignas(16) float stage[3][512];
    int t = threadIdx.x;
    auto load = [&](int k) {
        int at = (blockIdx.x * tiles + k) * 512 + t * 4;
        int there = max(0, min(4, n - at));
        if (k < tiles) __pipeline_memcpy_async(&stage[k % 3][t * 4], x + (there ? at : 0), 16, (4 - there) * 4);
        __pipeline_commit();
    };
    load(0);
    load(1);
    float sum = 0;
    for (int k = 0; k < tiles; k++) {
        load(k + 2);
        __pipeline_wait_prior(2);
        __syncthreads();
        for (int j = 0; j < 4; j++) sum += stage[k % 3][(t + 128 * j + 37) % 512] * weights[k];
        __syncthreads();
    }
    out[blockIdx.x * 128 + t] = sum;
}

// cuda::pipeline with a producer warp, and a cuda::barrier between the consumers.
KERNEL producer(const int* x, int* out, int tiles) {
    auto block = cg::this_thread_block();
    __shared__ alignas(16) int buffer[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ Barrier consumers;
    if (threadIdx.x == 0) init(&consumers, 64);
    auto role = threadIdx.x < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    block.sync();
    if (role == cuda::pipeline_role::producer) {
        for (int k = 0; k < tiles; k++) {
            pipe.producer_acquire();
            for (int j = threadIdx.x; j < 64; j += 32)
                cuda::memcpy_async(&buffer[k % 2][j], x + (blockIdx.x * tiles + k) * 64 + j, sizeof(int), pipe);
            pipe.producer_commit();
        }
    } else {
        int t = threadIdx.x - 32, sum = 0;
        __shared__ int turned[64];
        for (int k = 0; k < tiles; k++) {
            pipe.consumer_wait();
            int v = buffer[k % 2][63 - t];
            pipe.consumer_release();
            turned[t] = v;
            consumers.arrive_and_wait();
            sum = sum * 3 + turned[(t + 1) % 64];
            auto token = consumers.arrive();
            consumers.wait(cuda::std::move(token));
        }
        out[blockIdx.x * 64 + t] = sum;
    }
}

// Bulk copies without a tensor map: in through a barrier, out by groups, and a sum that memory makes.
KERNEL bulk(const float* x, float* out, float* total, int n) {
    __shared__ alignas(128) float tile[256];
    __shared__ Barrier bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(tile, x + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(tile)), bar);
        token = bar.arrive();
    } else {
        token = bar.arrive();
    }
    bar.wait(cuda::std::move(token));
    for (int k = threadIdx.x; k < 256; k += blockDim.x) tile[k] = tile[k] * 2 + 1;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * 256, tile, sizeof(tile));
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, total, tile, sizeof(tile));
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

// A stencil on tiles that TMA brings with their border, and takes back.
KERNEL stencil(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap out) {
    __shared__ alignas(128) float tile[18][20];
    __shared__ alignas(128) float result[16][16];
    __shared__ uint64_t bar;
    int t = threadIdx.x, c = t % 16, r = t / 16;
    int32_t at[2] = {(int)blockIdx.x * 16 - 1, (int)blockIdx.y * 16 - 1}, to[2] = {(int)blockIdx.x * 16, (int)blockIdx.y * 16};
    if (t == 0) {
        ptx::mbarrier_init(&bar, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &in, at, &bar);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, sizeof(tile));
    }
    __syncthreads();
    while (!ptx::mbarrier_try_wait_parity(&bar, 0)) {
    }
    r += 1, c += 1;
    result[r - 1][c - 1] = 4 * tile[r][c] - tile[r - 1][c] - tile[r + 1][c] - tile[r][c - 1] - tile[r][c + 1];
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (t == 0) {
        ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &out, to, result);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}

// A histogram whose bins are spread over the shared memories of a cluster.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const int* x, int* out, int n, int bins) {
    extern __shared__ int counts[];
    auto cluster = cg::this_cluster();
    int mine = bins / cluster.num_blocks();
    for (int k = threadIdx.x; k < mine; k += blockDim.x) counts[k] = 0;
    cluster.sync();
    for (int i = cg::this_grid().thread_rank(); i < n; i += cg::this_grid().num_threads())
        atomicAdd(cluster.map_shared_rank(counts, x[i] / mine) + x[i] % mine, 1);
    cluster.sync();
    for (int k = threadIdx.x; k < mine; k += blockDim.x) atomicAdd(&out[cluster.block_rank() * mine + k], counts[k]);
}

// A ring: each block sends its numbers to the next one's shared memory and signals its barrier.
extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_ring(const float* x, float* out, int rounds) {
    __shared__ alignas(16) float inbox[2][128];
    __shared__ uint64_t full[2];
    auto cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
    int t = threadIdx.x, i = ((blockIdx.y * gridDim.x + blockIdx.x) * 128) + t;
    if (t == 0) {
        ptx::mbarrier_init(&full[0], 1);
        ptx::mbarrier_init(&full[1], 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    cluster.sync();
    float v = x[i], sum = v;
    for (int k = 0; k < rounds; k++) {
        int s = k & 1;
        if (t == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[s], sizeof(inbox[0]));
        // Nobody sends before the receiver has read what was there two rounds ago.
        ptx::barrier_cluster_arrive(ptx::sem_release);
        ptx::barrier_cluster_wait(ptx::sem_acquire);
        ptx::st_async(cluster.map_shared_rank(&inbox[s][t], next), v, cluster.map_shared_rank(&full[s], next));
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &full[s], (k >> 1) & 1)) {
        }
        v = inbox[s][t] + 1;
        sum += v;
    }
    cluster.sync();
    out[i] = sum;
}

// One tile, loaded once and multicast to both blocks of a cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ TensorMap in, float* out) {
    __shared__ alignas(128) float tile[2][8][32];
    __shared__ uint64_t bar;
    unsigned rank = cg::this_cluster().block_rank();
    int t = threadIdx.x;
    if (t == 0) {
        ptx::mbarrier_init(&bar, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, sizeof(tile));
    }
    cg::this_cluster().sync();
    if (t == 0) {
        int32_t at[2] = {0, (int)(blockIdx.x * 8)};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile[rank], &in, at, &bar, (uint16_t)3);
    }
    while (!ptx::mbarrier_try_wait_parity(&bar, 0)) {
    }
    for (int k = t; k < 512; k += blockDim.x) out[blockIdx.x * 512 + k] = (&tile[0][0][0])[k] * (rank ? -1 : 1);
    cg::this_cluster().sync();
}

// Dependent launches: wait for the grid before, let the next one start.
KERNEL dependent(const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    out[i] = x[i] * 3 + 1;
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

#if __CUDA_ARCH__ >= 1000 || !defined(__CUDA_ARCH__)
// Blocks that take over the work of blocks that have not started.
KERNEL stealing(const int* x, int* out, int* taken) {
    __shared__ alignas(16) uint4 answer;
    __shared__ uint64_t bar;
    int block = blockIdx.x, phase = 0;
    if (threadIdx.x == 0) ptx::mbarrier_init(&bar, 1);
    for (bool more = true; more;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_acquire, ptx::space_cluster, ptx::scope_cluster);
            ptx::clusterlaunchcontrol_try_cancel(&answer, &bar);
            ptx::mbarrier_arrive_expect_tx(ptx::sem_relaxed, ptx::scope_cta, ptx::space_shared, &bar, sizeof(answer));
        }
        int i = block * blockDim.x + threadIdx.x;
        out[i] = x[i] + block;
        if (threadIdx.x == 0) atomicAdd(taken, 1);
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cta, &bar, phase)) {
        }
        phase ^= 1;
        uint4 got = answer;
        auto bits = *reinterpret_cast<__int128*>(&got);
        more = ptx::clusterlaunchcontrol_query_cancel_is_canceled(bits);
        if (more) {
            block = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<int>(bits);
            ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_release, ptx::space_shared, ptx::scope_cluster);
        }
    }
}
#endif
