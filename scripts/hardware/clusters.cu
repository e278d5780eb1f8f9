// How many clusters a GPU runs at a time, and on which SMs. The numbers `clusters_of_2` to `clusters_of_16` of `chips/` come from it. It needs
// CUDA 12 or later and a GPU of compute capability 9.0 (sm_90a below) or 10.0 (sm_100a):
//
//     nvcc -arch=sm_90a -O2 -o clusters clusters.cu
//     ./clusters
//
// Each CTA of a grid of several waves notes its SM and when it starts, and waits. CTAs that start before the first one ends run at a time.
#include "check.cuh"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

using u64 = unsigned long long;

constexpr int MOST_CTAS = 4096;
constexpr int SMEM_SIZES[] = {200 * 1024, 100 * 1024};

struct Cta {
    u64 start, end;
    unsigned sm;
};

__device__ u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void spin(Cta* ctas, u64 duration) {
    extern __shared__ char smem[];
    u64 start = nanoseconds();
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) {
        while (nanoseconds() - start < duration) {
        }
        ctas[blockIdx.x] = {start, nanoseconds(), sm};
    }
    __syncthreads();
}

// A launch of `clusters` clusters of `size` CTAs, and how many the driver says run at a time.
struct Launch {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    int ctas;

    Launch(int clusters, int size, int smem) : ctas(clusters * size) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = size;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = ctas;
        config.blockDim = 256;
        config.dynamicSmemBytes = smem;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }

    int occupancy() const {
        int clusters;
        CHECK(cudaOccupancyMaxActiveClusters(&clusters, spin, &config));
        return clusters;
    }

    std::vector<Cta> run(Cta* device, u64 duration) const {
        CHECK(cudaLaunchKernelEx(&config, spin, device, duration));
        CHECK(cudaDeviceSynchronize());
        std::vector<Cta> host(ctas);
        CHECK(cudaMemcpy(host.data(), device, sizeof(Cta) * ctas, cudaMemcpyDeviceToHost));
        return host;
    }
};

void at_a_time(Cta* device, int smem, int size, int sms) {
    Launch launch(600 / size, size, smem);
    launch.run(device, 50000);
    std::vector<Cta> ctas = launch.run(device, 50000);
    u64 first_start = ~0ull, first_end = ~0ull;
    for (const Cta& cta : ctas) {
        first_start = std::min(first_start, cta.start);
        first_end = std::min(first_end, cta.end);
    }
    int count = 0;
    std::set<unsigned> taken;
    std::map<u64, int> waves;
    for (const Cta& cta : ctas) {
        waves[(cta.start - first_start) / 5000 * 5]++;
        if (cta.start < first_end) {
            count++;
            taken.insert(cta.sm);
        }
    }
    printf("%d bytes of shared memory, clusters of %d: %d at a time by the driver, %d CTAs at a time on %zu SMs; CTAs that start, by us:",
           smem, size, launch.occupancy(), count, taken.size());
    for (auto [us, started] : waves) printf(" %llu: %d", us, started);
    printf("\n");
    if (size == 1 || smem != SMEM_SIZES[0]) return;
    printf("  their SMs:");
    for (int i = 0; i < launch.ctas; i += size) {
        if (ctas[i].start >= first_end) continue;
        for (int j = 0; j < size; j++) printf("%s%u", j == 0 ? " [" : " ", ctas[i + j].sm);
        printf("]");
    }
    printf("\n  SMs without a cluster:");
    for (int sm = 0; sm < sms; sm++) {
        if (!taken.count(sm)) printf(" %d", sm);
    }
    printf("\n");
}

// From the end of a CTA to the start of the next one on its SM.
void gaps(Cta* device, int size, u64 duration) {
    Launch launch(528 / size, size, SMEM_SIZES[0]);
    launch.run(device, duration);
    std::map<unsigned, std::vector<Cta>> by_sm;
    for (const Cta& cta : launch.run(device, duration)) by_sm[cta.sm].push_back(cta);
    double sum = 0;
    int count = 0;
    for (auto& [sm, ctas] : by_sm) {
        std::sort(ctas.begin(), ctas.end(), [](const Cta& x, const Cta& y) { return x.start < y.start; });
        for (size_t i = 1; i < ctas.size(); i++, count++) sum += double(ctas[i].start - ctas[i - 1].end);
    }
    printf("clusters of %d, %d CTAs of %llu ns: mean gap of %.0f ns between CTAs of an SM\n", size, launch.ctas, duration, sum / count);
}

int main() {
    int sms;
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    Cta* device;
    CHECK(cudaMalloc(&device, sizeof(Cta) * MOST_CTAS));
    CHECK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_SIZES[0]));
    CHECK(cudaFuncSetAttribute(spin, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int smem : SMEM_SIZES) {
        for (int size : {1, 2, 4, 8, 16}) at_a_time(device, smem, size, sms);
    }
    for (int size : {1, 2, 4, 8}) {
        for (u64 duration : {3000ull, 10000ull}) gaps(device, size, duration);
    }
}
