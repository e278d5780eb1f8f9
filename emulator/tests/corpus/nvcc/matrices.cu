// Products of matrices by the instructions of each generation.
#include <cuda/ptx>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <stdint.h>

#define KERNEL extern "C" __global__ void
namespace ptx = cuda::ptx;

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};
__device__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void wait(uint64_t* bar, uint32_t parity) {
    while (!ptx::mbarrier_try_wait_parity(bar, parity)) {
    }
}
__device__ void load_tile(void* to, const TensorMap& map, int x, int y, uint64_t* bar) {
    int32_t at[2] = {x, y};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, bar);
}
__device__ void expect(uint64_t* bar, uint32_t bytes) {
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, bar, bytes);
}

// mma.sync: 64 x 64 tiles by four warps, two stages of cp.async, ldmatrix from swizzled rows. C = A B^T.
KERNEL mma_f16(const __half* a, const __half* b, float* c, int n, int k) {
    __shared__ alignas(128) __half sa[2][64 * 32], sb[2][64 * 32];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    auto at = [](int row, int chunk) { return row * 32 + (chunk ^ (row >> 1 & 3)) * 8; };
    auto load = [&](int stage, int kk) {
        for (int i = t; i < 256; i += 128) {
            int row = i / 4, chunk = i % 4;
            __pipeline_memcpy_async(&sa[stage][at(row, chunk)], a + (row0 + row) * k + kk + chunk * 8, 16);
            __pipeline_memcpy_async(&sb[stage][at(row, chunk)], b + (col0 + row) * k + kk + chunk * 8, 16);
        }
        __pipeline_commit();
    };
    float acc[2][4][4] = {};
    load(0, 0);
    for (int kk = 0, stage = 0; kk < k; kk += 32, stage ^= 1) {
        if (kk + 32 < k) load(stage ^ 1, kk + 32);
        else __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        for (int ks = 0; ks < 2; ks++) {
            uint32_t fa[2][4], fb[2][4];
            for (int i = 0; i < 2; i++) {
                int row = warp / 2 * 32 + i * 16 + lane % 16;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                             : "r"(shared_address(&sa[stage][at(row, ks * 2 + lane / 16)])));
                row = warp % 2 * 32 + i * 16 + lane % 8 + lane / 16 * 8;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(fb[i][0]), "=r"(fb[i][1]), "=r"(fb[i][2]), "=r"(fb[i][3])
                             : "r"(shared_address(&sb[stage][at(row, ks * 2 + lane / 8 % 2)])));
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                                 : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]), "+f"(acc[i][j][3])
                                 : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j / 2][j % 2 * 2]), "r"(fb[j / 2][j % 2 * 2 + 1]));
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int h = 0; h < 2; h++) {
                int row = row0 + warp / 2 * 32 + i * 16 + lane / 4 + h * 8, col = col0 + warp % 2 * 32 + j * 8 + lane % 4 * 2;
                *reinterpret_cast<float2*>(&c[row * n + col]) = make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
            }
}

// One tile a warp, operands straight from memory: 8-bit integers, TF32 and doubles.
KERNEL mma_s8(const int8_t* a, const int8_t* b, int* c, int n, int k) {
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, col = blockIdx.x * 8, d[4] = {};
    for (int kk = lane % 4 * 4; kk < k; kk += 32) {
        auto word = [&](const int8_t* p, int r, int at) { return *reinterpret_cast<const int*>(p + r * k + at); };
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(word(a, row, kk)), "r"(word(a, row + 8, kk)), "r"(word(a, row, kk + 16)), "r"(word(a, row + 8, kk + 16)),
              "r"(word(b, col + lane / 4, kk)), "r"(word(b, col + lane / 4, kk + 16)));
    }
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * n + col + lane % 4 * 2 + i % 2] = d[i];
}
KERNEL mma_tf32(const float* a, const float* b, float* c, int n, int k) {
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, col = blockIdx.x * 8;
    float d[4] = {};
    for (int kk = lane % 4; kk < k; kk += 8) {
        auto word = [&](const float* p, int r, int at) {
            uint32_t bits;
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(p[r * k + at]));
            return bits;
        };
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(word(a, row, kk)), "r"(word(a, row + 8, kk)), "r"(word(a, row, kk + 4)), "r"(word(a, row + 8, kk + 4)),
              "r"(word(b, col + lane / 4, kk)), "r"(word(b, col + lane / 4, kk + 4)));
    }
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * n + col + lane % 4 * 2 + i % 2] = d[i];
}
KERNEL mma_f64(const double* a, const double* b, double* c, int n, int k) {
    int lane = threadIdx.x, row = blockIdx.y * 8 + lane / 4, col = blockIdx.x * 8;
    double d[2] = {};
    for (int kk = lane % 4; kk < k; kk += 4)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(d[0]), "+d"(d[1]) : "d"(a[row * k + kk]), "d"(b[(col + lane / 4) * k + kk]));
    for (int i = 0; i < 2; i++) c[row * n + col + lane % 4 * 2 + i] = d[i];
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define ACC32(d) \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), \
    "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
    "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define NAMES32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
__device__ uint64_t hopper_descriptor(const void* p) { return 0x4000004000010000ull | (shared_address(p) & 0x3ffff) >> 4; }
__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
__device__ void store_tile(float* c, int n, const float* d) {
    int t = threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
    for (int j = 0; j < 8; j++)
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<float2*>(&c[(row + 8 * h) * n + j * 8 + col]) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
}

// wgmma by specialised warpgroups: one loads, two multiply; three stages; registers move between them.
extern "C" __global__ void __launch_bounds__(384, 1)
    wgmma_f16(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int k) {
    extern __shared__ __align__(1024) unsigned char pool[];
    auto sa = reinterpret_cast<__half(*)[128 * 64]>(pool);
    auto sb = reinterpret_cast<__half(*)[64 * 64]>(pool + 3 * 16384);
    __shared__ uint64_t full[3], empty[3];
    int group = threadIdx.x / 128, tiles = k / 64;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 3; s++) {
            ptx::mbarrier_init(&full[s], 1);
            ptx::mbarrier_init(&empty[s], 2);
        }
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    if (group == 0) {
        ptx::setmaxnreg_dec(ptx::n32_t<40>());
        if (threadIdx.x == 0) {
            for (int i = 0; i < tiles; i++) {
                int s = i % 3;
                wait(&empty[s], (i / 3 & 1) ^ 1);
                expect(&full[s], 16384 + 8192);
                load_tile(sa[s], a, i * 64, blockIdx.y * 128, &full[s]);
                load_tile(sb[s], b, i * 64, blockIdx.x * 64, &full[s]);
            }
        }
    } else {
        ptx::setmaxnreg_inc(ptx::n32_t<232>());
        float d[32];
        for (int i = 0; i < tiles; i++) {
            int s = i % 3;
            wait(&full[s], i / 3 & 1);
            wgmma_fence();
            for (int ks = 0; ks < 4; ks++)
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                             "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " NAMES32 ", %32, %33, p, 1, 1, 0, 0;\n}\n"
                             : ACC32(d)
                             : "l"(hopper_descriptor(sa[s] + (group - 1) * 64 * 64) + ks * 2), "l"(hopper_descriptor(sb[s]) + ks * 2), "r"(i + ks));
            wgmma_commit();
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) ptx::mbarrier_arrive(&empty[s]);
        }
        store_tile(c + (blockIdx.y * 128 + (group - 1) * 64) * n + blockIdx.x * 64, n, d);
    }
}

// wgmma with A in registers, made of bytes and a scale for each row, and B as rows of K. C = (scale A) B.
KERNEL wgmma_dequantised(const int8_t* a, const float* scale, const __grid_constant__ TensorMap b, float* c, int n, int k) {
    __shared__ __align__(1024) __nv_bfloat16 sb[2][64 * 64];
    __shared__ uint64_t full[2];
    int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, tiles = k / 64;
    if (t == 0) {
        ptx::mbarrier_init(&full[0], 1);
        ptx::mbarrier_init(&full[1], 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    auto load = [&](int i) {
        if (t == 0 && i < tiles) {
            expect(&full[i % 2], 8192);
            load_tile(sb[i % 2], b, blockIdx.x * 64, i * 64, &full[i % 2]);
        }
    };
    auto pair = [&](int r, int kk) {
        char2 v = *reinterpret_cast<const char2*>(a + r * k + kk);
        __nv_bfloat162 h = __floats2bfloat162_rn(v.x * scale[r], v.y * scale[r]);
        return *reinterpret_cast<uint32_t*>(&h);
    };
    float d[32] = {};
    load(0);
    for (int i = 0; i < tiles; i++) {
        load(i + 1);
        uint32_t fa[4][4];
        for (int ks = 0; ks < 4; ks++)
            for (int h = 0; h < 4; h++) fa[ks][h] = pair(row + h % 2 * 8, i * 64 + ks * 16 + h / 2 * 8 + t % 4 * 2);
        wait(&full[i % 2], i / 2 & 1);
        wgmma_fence();
        for (int ks = 0; ks < 4; ks++)
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " NAMES32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                         : ACC32(d)
                         : "r"(fa[ks][0]), "r"(fa[ks][1]), "r"(fa[ks][2]), "r"(fa[ks][3]), "l"(hopper_descriptor(sb[i % 2] + ks * 16 * 64)));
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();
    }
    store_tile(c + blockIdx.x * 64, n, d);
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 1000
__device__ uint64_t blackwell_descriptor(const void* p) { return 0x4000404000010000ull | (shared_address(p) & 0x3ffff) >> 4; }
__device__ void store_rows(float* c, int n, uint32_t tmem, int columns) {
    int warp = threadIdx.x / 32 % 4, row = warp * 32 + threadIdx.x % 32;
    for (int j = 0; j < columns; j += 32) {
        uint32_t v[32];
        ptx::tcgen05_ld_32x32b(v, tmem + (warp * 32 << 16) + j);
        ptx::tcgen05_wait_ld();
        for (int i = 0; i < 32; i += 4) *reinterpret_cast<float4*>(&c[row * n + j + i]) = 
                make_float4(__uint_as_float(v[i]), __uint_as_float(v[i + 1]), __uint_as_float(v[i + 2]), __uint_as_float(v[i + 3]));
    }
}

// tcgen05: a warp that loads, one that multiplies, four that store. Two tiles a block, with an accumulator each.
extern "C" __global__ void __launch_bounds__(192, 1)
    tcgen05_f16(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int k) {
    extern __shared__ __align__(1024) unsigned char pool[];
    auto sa = reinterpret_cast<__half(*)[128 * 64]>(pool);
    auto sb = reinterpret_cast<__half(*)[64 * 64]>(pool + 3 * 16384);
    __shared__ uint64_t full[3], empty[3], ready[2];
    __shared__ uint32_t address;
    int warp = threadIdx.x / 32, tiles = k / 64;
    if (warp == 0 && ptx::elect_sync(~0u)) {
        for (int s = 0; s < 3; s++) {
            ptx::mbarrier_init(&full[s], 1);
            ptx::mbarrier_init(&empty[s], 1);
        }
        ptx::mbarrier_init(&ready[0], 1);
        ptx::mbarrier_init(&ready[1], 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    if (warp == 1) {
        ptx::tcgen05_alloc(ptx::cta_group_1, &address, 128);
        ptx::tcgen05_relinquish_alloc_permit(ptx::cta_group_1);
    }
    ptx::tcgen05_fence_before_thread_sync();
    __syncthreads();
    ptx::tcgen05_fence_after_thread_sync();
    uint32_t tmem = address;
    if (warp == 0 && ptx::elect_sync(~0u)) {
        for (int i = 0; i < 2 * tiles; i++) {
            int s = i % 3;
            wait(&empty[s], (i / 3 & 1) ^ 1);
            expect(&full[s], 16384 + 8192);
            load_tile(sa[s], a, i % tiles * 64, blockIdx.y * 128, &full[s]);
            load_tile(sb[s], b, i % tiles * 64, (blockIdx.x * 2 + i / tiles) * 64, &full[s]);
        }
    } else if (warp == 1 && ptx::elect_sync(~0u)) {
        for (int i = 0; i < 2 * tiles; i++) {
            int s = i % 3, tile = i / tiles;
            wait(&full[s], i / 3 & 1);
            ptx::tcgen05_fence_after_thread_sync();
            uint64_t da = blackwell_descriptor(sa[s]), db = blackwell_descriptor(sb[s]);
            for (int ks = 0; ks < 4; ks++)
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}\n"
                             ::"r"(tmem + tile * 64), "l"(da + ks * 2), "l"(db + ks * 2), "r"(0x08100010), "r"(i % tiles + ks) : "memory");
            ptx::tcgen05_commit(ptx::cta_group_1, &empty[s]);
            if (i % tiles == tiles - 1) ptx::tcgen05_commit(ptx::cta_group_1, &ready[tile]);
        }
    } else if (warp >= 2) {
        for (int tile = 0; tile < 2; tile++) {
            wait(&ready[tile], 0);
            ptx::tcgen05_fence_after_thread_sync();
            store_rows(c + blockIdx.y * 128 * n + (blockIdx.x * 2 + tile) * 64, n, tmem + tile * 64, 64);
        }
        ptx::tcgen05_fence_before_thread_sync();
    }
    __syncthreads();
    if (warp == 1) {
        ptx::tcgen05_fence_after_thread_sync();
        ptx::tcgen05_dealloc(ptx::cta_group_1, tmem, 128);
    }
}

// tcgen05 by a pair of blocks: each loads its half of A and of B, the first one multiplies for both.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192, 1)
    tcgen05_pair(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int k) {
    extern __shared__ __align__(1024) unsigned char pool[];
    auto sa = reinterpret_cast<__nv_bfloat16(*)[128 * 64]>(pool);
    auto sb = reinterpret_cast<__nv_bfloat16(*)[64 * 64]>(pool + 2 * 16384);
    __shared__ uint64_t full[2], empty[2], ready;
    __shared__ uint32_t address;
    int warp = threadIdx.x / 32, rank = blockIdx.x % 2, tiles = k / 64;
    if (warp == 0 && ptx::elect_sync(~0u)) {
        for (int s = 0; s < 2; s++) {
            ptx::mbarrier_init(&full[s], 1);
            ptx::mbarrier_init(&empty[s], 1);
        }
        ptx::mbarrier_init(&ready, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    if (warp == 1) {
        ptx::tcgen05_alloc(ptx::cta_group_2, &address, 128);
        ptx::tcgen05_relinquish_alloc_permit(ptx::cta_group_2);
    }
    ptx::tcgen05_fence_before_thread_sync();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    ptx::tcgen05_fence_after_thread_sync();
    uint32_t tmem = address;
    if (warp == 0 && ptx::elect_sync(~0u)) {
        for (int i = 0; i < tiles; i++) {
            int s = i % 2;
            wait(&empty[s], (i / 2 & 1) ^ 1);
            // The bytes of both blocks count on the barrier of the first.
            uint32_t bar = shared_address(&full[s]) & 0xfeffffff;
            if (rank == 0) expect(&full[s], 2 * (16384 + 8192));
            asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                         ::"r"(shared_address(sa[s])), "l"(&a), "r"(i * 64), "r"((int)blockIdx.x * 128), "r"(bar) : "memory");
            asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                         ::"r"(shared_address(sb[s])), "l"(&b), "r"(i * 64), "r"((int)blockIdx.y * 128 + rank * 64), "r"(bar) : "memory");
        }
    } else if (warp == 1 && rank == 0 && ptx::elect_sync(~0u)) {
        for (int i = 0; i < tiles; i++) {
            int s = i % 2;
            wait(&full[s], i / 2 & 1);
            ptx::tcgen05_fence_after_thread_sync();
            uint64_t da = blackwell_descriptor(sa[s]), db = blackwell_descriptor(sb[s]);
            for (int ks = 0; ks < 4; ks++)
                ptx::tcgen05_mma(ptx::kind_f16, ptx::cta_group_2, tmem, da + ks * 2, db + ks * 2, 0x10200490, i + ks > 0, ptx::n32_t<0>());
            ptx::tcgen05_commit_multicast(ptx::cta_group_2, &empty[s], (uint16_t)3);
        }
        ptx::tcgen05_commit_multicast(ptx::cta_group_2, &ready, (uint16_t)3);
    } else if (warp >= 2) {
        wait(&ready, 0);
        ptx::tcgen05_fence_after_thread_sync();
        store_rows(c + blockIdx.x * 128 * n + blockIdx.y * 128, n, tmem, 128);
        ptx::tcgen05_fence_before_thread_sync();
    }
    __syncwarp();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (warp == 1) {
        ptx::tcgen05_fence_after_thread_sync();
        ptx::tcgen05_dealloc(ptx::cta_group_2, tmem, 128);
    }
}

// tcgen05 with NVFP4 operands: scale factors go from memory by bulk copies to tensor memory by tcgen05.cp.
extern "C" __global__ void __launch_bounds__(128, 1)
    tcgen05_nvfp4(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const uint8_t* sfa, const uint8_t* sfb, float* c, int n, int k) {
    __shared__ __align__(1024) unsigned char sa[128 * 128], sb[128 * 128];
    __shared__ __align__(128) unsigned char scales[2][2048];
    __shared__ uint64_t full, done, ready;
    __shared__ uint32_t address;
    int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&full, 1);
        ptx::mbarrier_init(&done, 1);
        ptx::mbarrier_init(&ready, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    if (warp == 0) ptx::tcgen05_alloc(ptx::cta_group_1, &address, 256);
    ptx::tcgen05_fence_before_thread_sync();
    __syncthreads();
    ptx::tcgen05_fence_after_thread_sync();
    uint32_t tmem = address;
    if (warp == 0 && ptx::elect_sync(~0u)) {
        int blocks = k / 64;
        for (int i = 0; i < k / 256; i++) {
            if (i > 0) wait(&done, (i - 1) & 1);
            expect(&full, sizeof(sa) + sizeof(sb) + sizeof(scales));
            load_tile(sa, a, i * 128, blockIdx.y * 128, &full);
            load_tile(sb, b, i * 128, blockIdx.x * 128, &full);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, scales[0], sfa + (blockIdx.y * blocks + i * 4) * 512, 2048, &full);
            ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, scales[1], sfb + (blockIdx.x * blocks + i * 4) * 512, 2048, &full);
            wait(&full, i & 1);
            ptx::tcgen05_fence_after_thread_sync();
            for (int j = 0; j < 8; j++) {
                uint64_t d = 0x0000400800000000ull | (shared_address(scales[j / 4] + j % 4 * 512) & 0x3ffff) >> 4;
                ptx::tcgen05_cp_32x128b_warpx4(ptx::cta_group_1, tmem + 128 + j * 4, d);
            }
            uint64_t da = blackwell_descriptor(sa), db = blackwell_descriptor(sb);
            for (int ks = 0; ks < 4; ks++)
                asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
                             "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], p;\n}\n"
                             ::"r"(tmem), "l"(da + ks * 2), "l"(db + ks * 2), "r"(0x08200480), "r"(tmem + 128 + ks * 4), "r"(tmem + 144 + ks * 4), "r"(i + ks)
                             : "memory");
            ptx::tcgen05_commit(ptx::cta_group_1, &done);
        }
        ptx::tcgen05_commit(ptx::cta_group_1, &ready);
    }
    __syncwarp();
    wait(&ready, 0);
    ptx::tcgen05_fence_after_thread_sync();
    store_rows(c + blockIdx.y * 128 * n + blockIdx.x * 128, n, tmem, 128);
    ptx::tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (warp == 0) {
        ptx::tcgen05_fence_after_thread_sync();
        ptx::tcgen05_dealloc(ptx::cta_group_1, tmem, 256);
        ptx::tcgen05_relinquish_alloc_permit(ptx::cta_group_1);
    }
}
#endif
