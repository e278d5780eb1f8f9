// How L2 keeps lines on a GPU whose L2 has two halves. The numbers `l2_copies`, `l2_evict_first`, `l2_miss_rate` and `l2_far` of `chips/`
// come from it. It needs CUDA 12 or later and a GPU of compute capability 9.0:
//
//     nvcc -arch=sm_90a -O3 -o l2 l2.cu
//     ./l2 halves
//     ncu --clock-control none --cache-control none -k regex:again --metrics dram__bytes_read.sum --csv --print-units base ./l2 kept > kept.csv
//     ./l2 share kept.csv
//
// `halves` finds the SMs beside each half by the latency of lines that one SM has read. Then SMs of one half read what the other half has.
// `kept` reads a set of lines six times, with each eviction hint. `share` says which part of the set DRAM delivers each time.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

using u64 = unsigned long long;

constexpr size_t MB = 1 << 20;
constexpr int ROUNDS = 6;
constexpr int SIZES[] = {8, 12, 16, 20, 24, 28, 32, 40, 48, 56};
struct Hint {
    const char* name;
    u64 policy;
};
constexpr Hint HINTS[] = {
    {"evict_normal", 0x1000000000000000}, {"evict_first", 0x12f0000000000000}, {"evict_last", 0x14f0000000000000}};
const char* const READERS[] = {"all SMs read all", "each SM reads its part"};

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error = (call);                                                       \
        if (error != cudaSuccess) {                                                       \
            fprintf(stderr, "%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

__device__ unsigned sm_number() {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

__device__ u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Writes more than L2 holds.
__global__ void flush(uint4* data, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        data[i].x += 1;
    }
}

// Each CTA reads `n` units of 16 bytes again and again: its own, or the same as all others.
__global__ void again(const uint4* data, size_t n, bool own, u64 policy, unsigned* out) {
    const uint4* from = data + (own ? n * blockIdx.x : 0);
    unsigned sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
            uint4 v;
            asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "l"(from + i), "l"(policy));
            sum ^= v.x ^ v.w;
        }
    }
    if (sum == 0x12345) out[0] = sum;
}

// A thread of one SM reads lines one after the other: clocks of all.
__global__ void chain(const unsigned* data, int lines, int sm, long long* clocks) {
    if ((int)sm_number() != sm || threadIdx.x != 0) return;
    unsigned next = 0;
    long long begin = clock64();
    for (int i = 0; i < lines; i++) {
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(next) : "l"(data + (size_t)i * 32 + next) : "memory");
    }
    *clocks = clock64() - begin + next;
}

// SMs of one half, or of both, read boxes of 16 KB by bulk copies, ten under way in each SM.
struct Part {
    size_t at, bytes;
};
__global__ void boxes(const char* data, Part first, Part second, const int* half, const int* rank, int n0, int n1, u64* times, unsigned* here) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ __align__(8) u64 bars[10];
    if (threadIdx.x != 0) return;
    int sm = sm_number(), n = half[sm] ? n1 : n0;
    Part part = half[sm] ? second : first;
    unsigned to = (unsigned)__cvta_generic_to_shared(smem), bar = (unsigned)__cvta_generic_to_shared(bars);
    for (int i = 0; i < 10; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar + 8 * i));
    asm volatile("fence.mbarrier_init.release.cluster;");
    int count = ((int)(part.bytes / 16384) - rank[sm] + n - 1) / n;
    // All begin together: each SM has one CTA.
    atomicAdd(here, 1);
    while (*(volatile unsigned*)here < gridDim.x) {
    }
    times[2 * sm] = nanoseconds();
    auto load = [&](int i) {
        const char* from = data + part.at + ((size_t)i * n + rank[sm]) * 16384;
        int slot = i % 10;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" ::"r"(bar + 8 * slot) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16384, [%2];" ::"r"(to + 16384 * slot),
                     "l"(from), "r"(bar + 8 * slot)
                     : "memory");
    };
    for (int i = 0; i < count && i < 10; i++) load(i);
    for (int i = 0; i < count; i++) {
        unsigned done = 0;
        while (!done) {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(bar + 8 * (i % 10)), "r"(i / 10 & 1)
                         : "memory");
        }
        if (i + 10 < count) load(i + 10);
    }
    times[2 * sm + 1] = nanoseconds();
}

struct Buffers {
    char *data, *other;
    unsigned* out;
    int sms;
    Buffers() {
        cudaDeviceProp properties;
        CHECK(cudaGetDeviceProperties(&properties, 0));
        sms = properties.multiProcessorCount;
        printf("%s, %d SMs, L2 of %d bytes\n", properties.name, sms, properties.l2CacheSize);
        CHECK(cudaMalloc(&data, 128 * MB));
        CHECK(cudaMalloc(&other, 256 * MB));
        CHECK(cudaMalloc(&out, 64));
        CHECK(cudaMemset(data, 0, 128 * MB));
    }
    void cold() {
        flush<<<1320, 256>>>((uint4*)other, 256 * MB / 16);
        CHECK(cudaDeviceSynchronize());
    }
};

void kept() {
    Buffers b;
    for (const Hint& hint : HINTS) {
        for (int own = 0; own < 2; own++) {
            for (int size : SIZES) {
                size_t n = size * MB / (own ? b.sms : 1) / 16384 * 1024;
                b.cold();
                again<<<b.sms, 1024>>>((uint4*)b.data, n, own, hint.policy, b.out);
                CHECK(cudaDeviceSynchronize());
            }
        }
    }
}

void share(const char* file, int sms) {
    std::ifstream in(file);
    std::vector<double> bytes;
    for (std::string line; std::getline(in, line);) {
        if (line.find("dram__bytes_read.sum") == std::string::npos) continue;
        std::string value = line.substr(line.rfind(",\"") + 2);
        value.erase(std::remove_if(value.begin(), value.end(), [](char c) { return c == ',' || c == '"'; }), value.end());
        bytes.push_back(atof(value.c_str()));
    }
    size_t at = 0;
    for (const Hint& hint : HINTS) {
        for (int own = 0; own < 2; own++) {
            printf("%s, %s, MB and part of it from DRAM:", hint.name, READERS[own]);
            for (int size : SIZES) {
                if (at == bytes.size()) {
                    fprintf(stderr, "\n%s has %zu rows of dram__bytes_read.sum, which are too few: give ncu the kernel `again`\n", file, at);
                    exit(1);
                }
                double set = own ? size * MB / sms / 16384 * 16384.0 * sms : size * MB;
                printf(" %d: %.2f", size, std::max(0.0, (bytes[at++] / set - 1) / (ROUNDS - 1)));
            }
            printf("\n");
        }
    }
}

void halves() {
    Buffers b;
    const int lines = 4096;
    long long* clocks;
    u64* times;
    int *half, *rank;
    CHECK(cudaMallocManaged(&clocks, 8));
    CHECK(cudaMallocManaged(&times, 16 * b.sms));
    CHECK(cudaMallocManaged(&half, 4 * b.sms));
    CHECK(cudaMallocManaged(&rank, 4 * b.sms));
    CHECK(cudaFuncSetAttribute(boxes, cudaFuncAttributeMaxDynamicSharedMemorySize, 170000));
    auto latency = [&](int sm) {
        chain<<<10 * b.sms, 32>>>((unsigned*)b.data, lines, sm, clocks);
        CHECK(cudaDeviceSynchronize());
        return (double)*clocks / lines;
    };
    std::vector<double> after(b.sms);
    for (int sm = 0; sm < b.sms; sm++) {
        after[sm] = 1e9;
        for (int i = 0; i < 2; i++) {
            b.cold();
            latency(0);
            after[sm] = std::min(after[sm], latency(sm));
        }
    }
    std::vector<double> sorted = after;
    std::sort(sorted.begin(), sorted.end());
    double middle = (sorted[sorted.size() / 20] + sorted[sorted.size() * 19 / 20]) / 2, sums[2] = {0, 0};
    int n[2] = {0, 0};
    for (int sm = 0; sm < b.sms; sm++) {
        half[sm] = after[sm] > middle;
        rank[sm] = n[half[sm]]++;
        sums[half[sm]] += after[sm];
    }
    printf("%d SMs beside the half of SM 0 take %.0f clk for a line that SM 0 has read, %d beside the other %.0f\n", n[0], sums[0] / n[0], n[1],
           sums[1] / n[1]);
    auto run = [&](Part first, Part second) {
        CHECK(cudaMemset(b.out, 0, 4));
        boxes<<<b.sms, 32, 170000>>>(b.data, first, second, half, rank, n[0], n[1], times, b.out);
        CHECK(cudaDeviceSynchronize());
        u64 begin = ~0ull, end = 0;
        for (int sm = 0; sm < b.sms; sm++) {
            if ((half[sm] ? second : first).bytes == 0) continue;
            begin = std::min(begin, times[2 * sm]);
            end = std::max(end, times[2 * sm + 1]);
        }
        return (double)(end - begin);
    };
    auto median = [](std::vector<double> v) {
        std::sort(v.begin(), v.end());
        return v[v.size() / 2];
    };
    for (size_t size : {8, 16, 24}) {
        std::vector<double> cold, other, own;
        for (int i = 0; i < 9; i++) {
            b.cold();
            cold.push_back(run({0, size * MB}, {0, 0}));
            other.push_back(run({0, 0}, {0, size * MB}));
            own.push_back(run({0, 0}, {0, size * MB}));
        }
        printf("%zu MB, one half after the other: from DRAM %.0f ns, what the other half has %.0f ns, again %.0f ns\n", size, median(cold),
               median(other), median(own));
    }
    for (size_t size : {6, 10, 14}) {
        std::vector<double> cold, other, own;
        for (int i = 0; i < 9; i++) {
            b.cold();
            cold.push_back(run({0, size * MB}, {size * MB, size * MB}));
            other.push_back(run({size * MB, size * MB}, {0, size * MB}));
            own.push_back(run({size * MB, size * MB}, {0, size * MB}));
        }
        printf("%zu MB, both halves at once: from DRAM %.0f ns, what the other half has %.0f ns, again %.0f ns\n", 2 * size, median(cold),
               median(other), median(own));
    }
}

int main(int count, char** arguments) {
    std::string what = count > 1 ? arguments[1] : "";
    if (what == "halves") {
        halves();
    } else if (what == "kept") {
        kept();
    } else if (what == "share" && count == 3) {
        int sms;
        CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
        share(arguments[2], sms);
    } else {
        fprintf(stderr, "usage: l2 halves | kept | share FILE\n");
        return 2;
    }
}
