// What loads and stores of warps take on an SM, and what CTAs of a cluster take to meet and to exchange data. The numbers `load_queue`,
// `store_queue`, `store_buffer` and `dsmem_rate` of `chips/` come from it. It needs CUDA 12.1 or later and a GPU of compute capability 9.0
// (sm_90a below) or 10.0 (sm_100a):
//
//     nvcc -std=c++17 -arch=sm_90a -O2 -o accesses accesses.cu
//     ./accesses
//
// Times are in clocks of the SM, those of launches in microseconds. Each is the least of several launches, or their median in a graph.
#include "check.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

using u64 = unsigned long long;

constexpr int SMEM = 120'000;
// Bytes of the part of shared memory that other CTAs read or write, and the place of a barrier.
constexpr unsigned EXCHANGED = 65'536, BARRIER = 100'000;

__device__ void release_and_wait() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ void meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ unsigned shared_address(const void* place) {
    return unsigned(__cvta_generic_to_shared(place));
}

// The address of `place` in the next CTA of the cluster.
__device__ unsigned in_next(unsigned place) {
    unsigned rank, ctas, there;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ctas));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"((rank + 1) % ctas));
    return there;
}

// A launch of CTAs in clusters of a size; 0: no clusters.
struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;

    Launch(int ctas, int size, int threads, int smem) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = size;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = ctas;
        config.blockDim = threads;
        config.dynamicSmemBytes = smem;
        config.attrs = &attribute;
        config.numAttrs = size > 0;
    }

    // The least of what a kernel leaves in `out`.
    template <class Kernel, class... Args> u64 least(Kernel kernel, u64* out, Args... args) const {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
        u64 least = ~0ull;
        for (int i = 0; i < 6; i++) {
            u64 clocks;
            CHECK(cudaMemset(out, 0, sizeof *out));
            CHECK(cudaLaunchKernelEx(&config, kernel, out, args...));
            CHECK(cudaMemcpy(&clocks, out, sizeof clocks, cudaMemcpyDeviceToHost));
            least = std::min(least, clocks);
        }
        return least;
    }
};

// ---- launches --------------------------------------------------------------------------------------

enum Meeting { NONE, RELAXED_AT_START, RELAXED_AT_BOTH_ENDS, RELEASE_AT_BOTH_ENDS };

template <Meeting MEETING> __global__ void __launch_bounds__(384) nothing() {
    if (MEETING == RELEASE_AT_BOTH_ENDS) release_and_wait();
    if (MEETING == RELAXED_AT_START || MEETING == RELAXED_AT_BOTH_ENDS) meet();
    if (MEETING == RELAXED_AT_BOTH_ENDS) meet();
    if (MEETING == RELEASE_AT_BOTH_ENDS) release_and_wait();
}

// Microseconds of one of 200 launches in a graph.
template <class Kernel> float in_graph(Kernel kernel, int ctas, int size) {
    constexpr int LAUNCHES = 200, SMEM_OF_GEMM = 200 * 1024;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_OF_GEMM));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t launches;
    cudaEvent_t start, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    Launch launch(ctas, size, 384, SMEM_OF_GEMM);
    launch.config.stream = stream;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < LAUNCHES; i++) CHECK(cudaLaunchKernelEx(&launch.config, kernel));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&launches, graph, 0));
    std::vector<float> times(11);
    for (float& time : times) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(launches, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&time, start, end));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1000 / LAUNCHES;
}

template <Meeting MEETING> void launches(const char* what) {
    for (int ctas : {8, 40, 120}) {
        printf("us of a launch, %3d CTAs, %s:", ctas, what);
        for (int size : {1, 2, 4, 8}) printf("  clusters of %d %.2f", size, in_graph(nothing<MEETING>, ctas, size));
        if (MEETING == NONE) printf("  no clusters %.2f", in_graph(nothing<MEETING>, ctas, 0));
        printf("\n");
    }
}

// ---- meetings after stores --------------------------------------------------------------------------

enum Stores { NO_STORES, OF_THREADS, IN_BULK };

template <bool RELEASE> __global__ void __launch_bounds__(128) meeting(u64* out, char* data, Stores stores, int bytes) {
    extern __shared__ __align__(128) char smem[];
    data += blockIdx.x * EXCHANGED;
    for (int i = threadIdx.x; i < int(EXCHANGED / 4); i += blockDim.x) reinterpret_cast<int*>(smem)[i] = i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    release_and_wait();
    if (stores == OF_THREADS) {
        for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
            asm volatile("st.global.v4.u32 [%0], { %1, %1, %1, %1 };" ::"l"(data + i), "r"(i) : "memory");
    }
    if (stores == IN_BULK && threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;\n"
                     "cp.async.bulk.wait_group.read 0;" ::"l"(data), "r"(shared_address(smem)), "r"(bytes)
                     : "memory");
    }
    __syncwarp();
    long long start = clock64();
    if (RELEASE) release_and_wait();
    else meet();
    atomicMax(out, u64(clock64() - start));
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    release_and_wait();
}

// ---- exchanges of a cluster of two -----------------------------------------------------------------

template <bool BY_MBARRIER> __global__ void exchange(u64* out, int vectors) {
    extern __shared__ __align__(128) char smem[];
    unsigned base = shared_address(smem), barrier = base + BARRIER;
    unsigned there = in_next(base), barrier_there = in_next(barrier), sum = 0;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                     "fence.mbarrier_init.release.cluster;" ::"r"(barrier), "r"(16 * vectors * blockDim.x)
                     : "memory");
    }
    release_and_wait();
    long long start = clock64();
    auto place = [&](unsigned smem, int i) { return smem + 16 * (i * blockDim.x + threadIdx.x); };
    if (!BY_MBARRIER) release_and_wait();
    for (int i = 0; i < vectors; i++) {
        if (BY_MBARRIER)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], { %1, %1, %1, %1 }, [%2];" ::"r"(place(there, i)),
                         "r"(i), "r"(barrier_there)
                         : "memory");
        else asm volatile("st.shared::cluster.v4.u32 [%0], { %1, %1, %1, %1 };" ::"r"(place(there, i)), "r"(i) : "memory");
    }
    if (BY_MBARRIER)
        asm volatile("{\n.reg .pred complete;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], 0;\n@!complete bra WAIT;\n}" ::"r"(barrier)
                     : "memory");
    else release_and_wait();
    for (int i = 0; i < vectors; i++) {
        unsigned a, b, c, d;
        asm volatile("ld.shared.v4.u32 { %0, %1, %2, %3 }, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(place(base, i)) : "memory");
        sum += a ^ b ^ c ^ d;
    }
    // No sum is this number: the comparison keeps the loads before the clock.
    if (sum == 0x9e3779b9) start = 0;
    atomicMax(out, u64(clock64() - start));
    release_and_wait();
}

// ---- rates of distributed shared memory --------------------------------------------------------------

template <bool STORE> __global__ void distributed(u64* out, int rounds) {
    extern __shared__ __align__(128) char smem[];
    unsigned base = shared_address(smem), there = in_next(base), sum = 0;
    for (int i = threadIdx.x; i < int(EXCHANGED / 4); i += blockDim.x) reinterpret_cast<int*>(smem)[i] = 0;
    release_and_wait();
    long long start = clock64();
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            unsigned place = there + (16 * threadIdx.x + 8192 * i) % EXCHANGED, a, b, c, d;
            if (STORE) asm volatile("st.shared::cluster.v4.u32 [%0], { %1, %1, %1, %1 };" ::"r"(place), "r"(round) : "memory");
            else {
                asm volatile("ld.volatile.shared::cluster.v4.u32 { %0, %1, %2, %3 }, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(place));
                sum += a ^ b ^ c ^ d;
            }
        }
    }
    if (sum == 0x9e3779b9) start = 0;
    if (STORE) release_and_wait();
    atomicMax(out, u64(clock64() - start));
    release_and_wait();
}

template <bool STORE> void rate(u64* out, int size, int clusters, int threads) {
    constexpr int ROUNDS[] = {16, 64};
    Launch launch(size * clusters, size, threads, SMEM);
    u64 times[2];
    for (int i = 0; i < 2; i++) times[i] = launch.least(distributed<STORE>, out, ROUNDS[i]);
    double bytes = (ROUNDS[1] - ROUNDS[0]) * 8.0 * 16 * threads;
    printf("%s, %2d clusters of %d, %3d threads: %.1f bytes a clock and SM\n", STORE ? "st.shared::cluster.v4" : "ld.shared::cluster.v4", clusters,
           size, threads, bytes / (times[1] - times[0]));
}

// ---- accesses under way --------------------------------------------------------------------------------

enum Access { LOAD, STORE, SHARED_LOAD, SHARED_STORE };
constexpr int ACCESSES = 32;

// When the first warp has issued each of its accesses, of which all warps make as many; then when all of its data are there. Lanes of a warp
// access `lines` lines of 128 bytes, or as many words of one bank.
template <Access ACCESS> __global__ void issue(u64* out, float* data, int lines) {
    __shared__ float smem[12288];
    constexpr int PITCH = 1056;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = 32 / lines;
    float* global = data + (lane / group + 32 * warp) * PITCH + lane % group;
    unsigned shared = shared_address(smem) + 128 * (lane / group) + 4 * (lane % group);
    float values[ACCESSES], sum = 0;
    unsigned clocks[ACCESSES + 2];
    // The first round brings the lines to L2 and the code to the SM.
    for (int round = 0; round < 3; round++) {
        // Accesses of the round before are over. The fence empties L1: loads hit L2.
        __threadfence();
        __syncthreads();
        asm volatile("mov.u32 %0, %%clock;" : "=r"(clocks[0])::"memory");
#pragma unroll
        for (int i = 0; i < ACCESSES; i++) {
            values[i] = 0;
            if (ACCESS == LOAD) asm volatile("ld.global.f32 %0, [%1];" : "=f"(values[i]) : "l"(global + i) : "memory");
            if (ACCESS == STORE) asm volatile("st.global.f32 [%0], %1;" ::"l"(global + i), "f"(sum) : "memory");
            if (ACCESS == SHARED_LOAD) asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(values[i]) : "r"(shared + 4 * i) : "memory");
            if (ACCESS == SHARED_STORE) asm volatile("st.volatile.shared.f32 [%0], %1;" ::"r"(shared + 4 * i), "f"(sum) : "memory");
            asm volatile("mov.u32 %0, %%clock;" : "=r"(clocks[i + 1])::"memory");
        }
#pragma unroll
        for (int i = 0; i < ACCESSES; i++) sum += values[i];
        if (sum == 0.777f) sum = 0;
        asm volatile("mov.u32 %0, %%clock;" : "=r"(clocks[ACCESSES + 1])::"memory");
    }
    if (threadIdx.x == 0)
        for (int i = 1; i < ACCESSES + 2; i++) out[i - 1] = clocks[i] - clocks[0];
    if (sum == 0.123f) out[0] = 0;
}

template <Access ACCESS> void issues(const char* what, u64* out, float* data) {
    for (int warps : {1, 4, 8, 12, 16}) {
        for (int lines : {1, 8, 32}) {
            u64 clocks[ACCESSES + 1];
            issue<ACCESS><<<1, 32 * warps>>>(out, data, lines);
            CHECK(cudaMemcpy(clocks, out, sizeof clocks, cudaMemcpyDeviceToHost));
            printf("%s of %2d warps, %2d lines each, issued after", what, warps, lines);
            for (u64 clock : clocks) printf(" %llu", clock);
            printf("\n");
        }
    }
}

int main() {
    u64* out;
    char* data;
    CHECK(cudaMalloc(&out, 4096));
    CHECK(cudaMalloc(&data, 64 << 20));
    CHECK(cudaMemset(data, 0, 64 << 20));

    launches<NONE>("empty kernel");
    launches<RELAXED_AT_START>("relaxed meeting");
    launches<RELAXED_AT_BOTH_ENDS>("two relaxed meetings");
    launches<RELEASE_AT_BOTH_ENDS>("two releasing meetings");

    const char* names[] = {"no stores", "st.global.v4", "bulk store"};
    for (int ctas : {2, 132}) {
        for (Stores stores : {NO_STORES, OF_THREADS, IN_BULK}) {
            for (int bytes : {2048, 16384}) {
                Launch launch(ctas, 2, 128, SMEM);
                u64 relaxed = launch.least(meeting<false>, out, data, stores, bytes), release = launch.least(meeting<true>, out, data, stores, bytes);
                printf("meeting of clusters of 2, %3d CTAs, after %s of %5d bytes: relaxed %llu, release %llu clk\n", ctas, names[stores], bytes,
                       relaxed, release);
            }
        }
    }
    for (int clusters : {1, 66}) {
        for (int threads : {128, 256}) {
            for (int vectors : {1, 2, 4, 8, 16}) {
                Launch launch(2 * clusters, 2, threads, SMEM);
                u64 barriers = launch.least(exchange<false>, out, vectors), mbarrier = launch.least(exchange<true>, out, vectors);
                printf("exchange of %5d bytes, %2d clusters of 2, %d threads: two barriers %llu, st.async %llu clk\n", 16 * vectors * threads,
                       clusters, threads, barriers, mbarrier);
            }
        }
    }
    for (int size : {2, 4}) {
        for (int clusters : {1, size == 2 ? 66 : 30}) {
            for (int threads : {128, 512}) {
                rate<true>(out, size, clusters, threads);
                rate<false>(out, size, clusters, threads);
            }
        }
    }
    float* words = reinterpret_cast<float*>(data);
    issues<LOAD>("loads", out, words);
    issues<STORE>("stores", out, words);
    issues<SHARED_LOAD>("shared loads", out, words);
    issues<SHARED_STORE>("shared stores", out, words);
    CHECK(cudaDeviceSynchronize());
}
