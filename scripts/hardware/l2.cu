// How L2 keeps lines on a GPU whose L2 has two halves. The numbers `l2_copies`, `l2_evict_first`, `l2_cross_rate` and `l2_far` of `chips/`
// come from it, and how the simulator spreads pages over the halves. It needs CUDA 12 or later and a GPU of compute capability 9.0:
//
//     nvcc -arch=sm_90a -O3 -o l2 l2.cu
//     ./l2 halves
//     ./l2 homes
//     ncu --clock-control none --cache-control none -k regex:again --metrics dram__bytes_read.sum --csv --print-units base ./l2 kept > kept.csv
//     ./l2 share kept.csv
//
// `halves` finds the SMs beside each half by the latency of lines that one SM has read. Then SMs of one half read what the other half has.
// `homes` finds the half that each page of 4 KB belongs to by the latency of atomics. Then SMs read pages of their own half or of the other.
// `kept` reads a set of lines six times, with each eviction hint. `share` says which part of the set DRAM delivers each time.
#include "check.cuh"

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

// Reads more than L2 holds. What it leaves there need not be written to DRAM.
__global__ void flush(const uint4* data, size_t n, unsigned* out) {
    unsigned sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        sum ^= __ldcg(data + i).x;
    }
    if (sum == 0x12345) out[1] = sum;
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

// A thread of one SM reads lines one after the other, or adds 0 to a word of each: clocks of each line.
__global__ void each(unsigned* data, int lines, int sm, bool atomics, unsigned short* clocks) {
    __shared__ volatile unsigned here;
    if ((int)sm_number() != sm || threadIdx.x != 0) return;
    unsigned next = 0;
    for (int i = 0; i < lines; i++) {
        unsigned* at = data + (size_t)i * 32 + next;
        long long begin = clock64();
        if (atomics) {
            asm volatile("atom.global.add.u32 %0, [%1], 0;" : "=r"(next) : "l"(at) : "memory");
        } else {
            asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(next) : "l"(at) : "memory");
        }
        // The store waits for the word, and the clock for the store.
        here = next;
        clocks[i] = (unsigned short)(clock64() - begin);
    }
}

// SMs of one half, or of both, read pages of 4 KB by bulk copies, four per barrier and forty under way in each SM.
struct Pages {
    const unsigned* list;
    int n;
};
__global__ void boxes(const char* data, Pages first, Pages second, const int* half, const int* rank, int n0, int n1, u64* times, unsigned* here) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ __align__(8) u64 bars[10];
    if (threadIdx.x != 0) return;
    int sm = sm_number(), n = half[sm] ? n1 : n0;
    Pages pages = half[sm] ? second : first;
    unsigned to = (unsigned)__cvta_generic_to_shared(smem), bar = (unsigned)__cvta_generic_to_shared(bars);
    for (int i = 0; i < 10; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar + 8 * i));
    asm volatile("fence.mbarrier_init.release.cluster;");
    int count = (pages.n / 4 - rank[sm] + n - 1) / n;
    auto pages_of = [&](int i) { return i < count ? ((const uint4*)pages.list)[i * n + rank[sm]] : uint4{}; };
    // The list is read ahead of the copies.
    uint4 next[10];
    for (int i = 0; i < 10; i++) next[i] = pages_of(i);
    // All begin together: each SM has one CTA.
    atomicAdd(here, 1);
    while (*(volatile unsigned*)here < gridDim.x) {
    }
    times[2 * sm] = nanoseconds();
    auto load = [&](int slot, uint4 four) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" ::"r"(bar + 8 * slot) : "memory");
        unsigned pages[4] = {four.x, four.y, four.z, four.w};
        for (int k = 0; k < 4; k++) {
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];" ::"r"(
                             to + 16384 * slot + 4096 * k),
                         "l"(data + (size_t)pages[k] * 4096), "r"(bar + 8 * slot)
                         : "memory");
        }
    };
#pragma unroll
    for (int slot = 0; slot < 10; slot++) {
        if (slot < count) load(slot, next[slot]);
        next[slot] = pages_of(slot + 10);
    }
    for (int i = 0; i < count; i += 10) {
#pragma unroll
        for (int slot = 0; slot < 10; slot++) {
            if (i + slot >= count) break;
            unsigned done = 0;
            while (!done) {
                asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                             : "=r"(done)
                             : "r"(bar + 8 * slot), "r"(i / 10 & 1)
                             : "memory");
            }
            if (i + slot + 10 < count) load(slot, next[slot]);
            next[slot] = pages_of(i + slot + 20);
        }
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
        CHECK(cudaMemset(other, 0, 256 * MB));
    }
    void cold() {
        for (int i = 0; i < 2; i++) flush<<<1320, 256>>>((uint4*)other, 256 * MB / 16, out);
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

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

// The half beside each SM, and reads by SMs of one half or of both.
struct Halves : Buffers {
    int *half, *rank, n[2] = {0, 0}, first_of_second = -1;
    u64* times;
    unsigned* all;

    Halves() {
        const int lines = 4096;
        long long* clocks;
        CHECK(cudaMallocManaged(&clocks, 8));
        CHECK(cudaMallocManaged(&times, 16 * sms));
        CHECK(cudaMallocManaged(&half, 4 * sms));
        CHECK(cudaMallocManaged(&rank, 4 * sms));
        CHECK(cudaFuncSetAttribute(boxes, cudaFuncAttributeMaxDynamicSharedMemorySize, 170000));
        auto latency = [&](int sm) {
            chain<<<10 * sms, 32>>>((unsigned*)data, lines, sm, clocks);
            CHECK(cudaDeviceSynchronize());
            return (double)*clocks / lines;
        };
        std::vector<double> after(sms);
        for (int sm = 0; sm < sms; sm++) {
            after[sm] = 1e9;
            for (int i = 0; i < 2; i++) {
                cold();
                latency(0);
                after[sm] = std::min(after[sm], latency(sm));
            }
        }
        std::vector<double> sorted = after;
        std::sort(sorted.begin(), sorted.end());
        double middle = (sorted[sorted.size() / 20] + sorted[sorted.size() * 19 / 20]) / 2, sums[2] = {0, 0};
        for (int sm = 0; sm < sms; sm++) {
            half[sm] = after[sm] > middle;
            if (half[sm] && first_of_second < 0) first_of_second = sm;
            rank[sm] = n[half[sm]]++;
            sums[half[sm]] += after[sm];
        }
        printf("%d SMs beside the half of SM 0 take %.0f clk for a line that SM 0 has read, %d beside the other %.0f\n", n[0], sums[0] / n[0],
               n[1], sums[1] / n[1]);
        std::vector<unsigned> pages(128 * MB / 4096);
        for (size_t i = 0; i < pages.size(); i++) pages[i] = (unsigned)i;
        all = list(pages);
    }

    unsigned* list(const std::vector<unsigned>& pages) {
        unsigned* copy;
        CHECK(cudaMalloc(&copy, 4 * pages.size()));
        CHECK(cudaMemcpy(copy, pages.data(), 4 * pages.size(), cudaMemcpyHostToDevice));
        return copy;
    }

    // Nanoseconds from the first start to the last end.
    double run(Pages first, Pages second) {
        CHECK(cudaMemset(out, 0, 4));
        boxes<<<sms, 32, 170000>>>(data, first, second, half, rank, n[0], n[1], times, out);
        CHECK(cudaDeviceSynchronize());
        u64 begin = ~0ull, end = 0;
        for (int sm = 0; sm < sms; sm++) {
            if ((half[sm] ? second : first).n == 0) continue;
            begin = std::min(begin, times[2 * sm]);
            end = std::max(end, times[2 * sm + 1]);
        }
        return (double)(end - begin);
    }

    // Medians of the steps of nine rounds, each of which starts with nothing in L2.
    std::vector<double> steps(const std::vector<std::pair<Pages, Pages>>& of) {
        std::vector<std::vector<double>> times(of.size());
        for (int i = 0; i < 9; i++) {
            cold();
            for (size_t step = 0; step < of.size(); step++) times[step].push_back(run(of[step].first, of[step].second));
        }
        std::vector<double> medians;
        for (const auto& t : times) medians.push_back(median(t));
        return medians;
    }
};

void halves() {
    Halves h;
    for (int size : {8, 16, 24}) {
        Pages part{h.all, size * 256}, none{h.all, 0};
        auto t = h.steps({{part, none}, {none, part}, {none, part}});
        printf("%d MB, one half after the other: from DRAM %.0f ns, what the other half has %.0f ns, again %.0f ns\n", size, t[0], t[1], t[2]);
    }
    for (int size : {6, 10, 14}) {
        Pages a{h.all, size * 256}, b{h.all + size * 256, size * 256};
        auto t = h.steps({{a, b}, {b, a}, {b, a}});
        printf("%d MB, both halves at once: from DRAM %.0f ns, what the other half has %.0f ns, again %.0f ns\n", 2 * size, t[0], t[1], t[2]);
    }
}

void homes() {
    Halves h;
    const int lines = 64 * MB / 128, per_page = 32;
    unsigned short* clocks;
    CHECK(cudaMalloc(&clocks, 2 * lines));
    auto each_line = [&](int n, int sm, bool atomics) {
        std::vector<unsigned short> of(n);
        each<<<10 * h.sms, 32>>>((unsigned*)h.data, n, sm, atomics, clocks);
        CHECK(cudaMemcpy(of.data(), clocks, 2 * n, cudaMemcpyDeviceToHost));
        return of;
    };
    // Atomics are done in the half beside a line's DRAM.
    each_line(lines, 0, true);
    auto by_first = each_line(lines, 0, true), by_second = each_line(lines, h.first_of_second, true);
    std::vector<int> home(lines / per_page);
    int agree = 0, pairs = 0;
    for (size_t page = 0; page < home.size(); page++) {
        int nearer = 0;
        for (int i = 0; i < per_page; i++) nearer += by_second[page * per_page + i] < by_first[page * per_page + i];
        home[page] = 2 * nearer > per_page;
        agree += std::max(nearer, per_page - nearer);
    }
    for (size_t page = 0; page < home.size(); page += 2) pairs += home[page] != home[page + 1];
    printf("%.3f of lines are nearest to the half of most lines of their 4 KB; of %zu pairs of pages %d have one of each half\n",
           (double)agree / lines, home.size() / 2, pairs);
    auto print = [&](const char* what, const std::vector<unsigned short>& of) {
        double middle[2];
        for (int half = 0; half < 2; half++) {
            std::vector<double> list;
            for (size_t i = 0; i < of.size(); i++) {
                if (home[i / per_page] == half) list.push_back(of[i]);
            }
            middle[half] = median(list);
        }
        printf("%s: lines of the first half %.0f clk, of the second %.0f\n", what, middle[0], middle[1]);
    };
    const int some = 16384, second = h.first_of_second;
    h.cold();
    print("SM 0 from DRAM", each_line(some, 0, false));
    print("SM 0 again", each_line(some, 0, false));
    print("an SM beside the second half", each_line(some, second, false));
    print("that SM again", each_line(some, second, false));
    std::vector<unsigned> pages[2];
    for (size_t page = 0; page < home.size(); page++) pages[home[page]].push_back((unsigned)page);
    unsigned* of[2] = {h.list(pages[0]), h.list(pages[1])};
    for (int size : {8, 16, 24}) {
        int n = size * 256;
        Pages first{of[0], n}, second{of[1], n}, none{of[0], 0};
        auto near = h.steps({{first, none}, {none, first}}), far = h.steps({{second, none}});
        auto own = h.steps({{first, second}, {second, first}}), other = h.steps({{second, first}});
        printf("%d MB by one half: its own from DRAM %.0f ns, the other's from DRAM %.0f ns, what the other has of its own %.0f ns\n", size,
               near[0], far[0], near[1]);
        printf("%d MB by each half at once: its own from DRAM %.0f ns, the other's from DRAM %.0f ns, what the other has of its own %.0f ns\n",
               size, own[0], other[0], own[1]);
    }
}

int main(int count, char** arguments) {
    std::string what = count > 1 ? arguments[1] : "";
    if (what == "halves") {
        halves();
    } else if (what == "homes") {
        homes();
    } else if (what == "kept") {
        kept();
    } else if (what == "share" && count == 3) {
        int sms;
        CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
        share(arguments[2], sms);
    } else {
        fprintf(stderr, "usage: l2 halves | homes | kept | share FILE\n");
        return 2;
    }
}
