// Products by CUTLASS 3.x: a kernel of the collective builders for each CASE, and a host program that
// prints how it is launched: grid, block, cluster, shared memory, and the bytes of its parameters. That one
// is compiled with LAYOUT, which leaves the kernel empty.
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "cutlass/cutlass.h"

#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

using namespace cute;
using cutlass::arch::Sm100;
using cutlass::arch::Sm90;
namespace gemm = cutlass::gemm;
namespace epilogue = cutlass::epilogue;
using Plain = cutlass::arch::OpClassTensorOp;
using Scaled = cutlass::arch::OpClassBlockScaledTensorOp;

template <class Arch_, class Class_, class A_, class D_, class Tile_, class Cluster_, class Mainloop_, class Epilogue_, int Alignment_, class Scheduler_ = void, bool grouped_ = false>
struct Config {
    using Arch = Arch_;
    using Class = Class_;
    using A = A_;
    using D = D_;
    using Tile = Tile_;
    using Cluster = Cluster_;
    using Mainloop = Mainloop_;
    using Epilogue = Epilogue_;
    using Scheduler = Scheduler_;
    static constexpr int alignment = Alignment_;
    // Products of several sizes, whose operands and sizes are arrays on the device.
    static constexpr bool grouped = grouped_;
    template <class Layout>
    using Of = cute::conditional_t<grouped_, Layout*, Layout>;
    static constexpr bool scaled = cute::is_same_v<Class, Scaled>;
};

// Cases are numbered by make.py.
template <int>
struct Case;
template <>
struct Case<0> : Config<Sm90, Plain, cutlass::half_t, cutlass::half_t, Shape<_128, _128, _64>, Shape<_2, _1, _1>, gemm::KernelTmaWarpSpecializedCooperative, epilogue::TmaWarpSpecializedCooperative, 8> {};
template <>
struct Case<1> : Config<Sm90, Plain, cutlass::bfloat16_t, cutlass::bfloat16_t, Shape<_64, _128, _64>, Shape<_1, _1, _1>, gemm::KernelTmaWarpSpecializedPingpong, epilogue::TmaWarpSpecialized, 8> {};
template <>
struct Case<2> : Config<Sm90, Plain, cutlass::float_e4m3_t, float, Shape<_64, _128, _128>, Shape<_1, _2, _1>, gemm::KernelTmaWarpSpecialized, epilogue::TmaWarpSpecialized, 16> {};
template <>
struct Case<3> : Config<Sm100, Plain, cutlass::half_t, cutlass::half_t, Shape<_128, _128, _64>, Shape<_1, _1, _1>, gemm::KernelTmaWarpSpecialized1SmSm100, epilogue::TmaWarpSpecialized1Sm, 8> {};
template <>
struct Case<4> : Config<Sm100, Plain, cutlass::bfloat16_t, float, Shape<_256, _128, _64>, Shape<_2, _1, _1>, gemm::KernelTmaWarpSpecialized2SmSm100, epilogue::TmaWarpSpecialized2Sm, 8> {};
template <>
struct Case<5> : Config<Sm100, Scaled, cutlass::nv_float4_t<cutlass::float_e2m1_t>, float, Shape<_128, _128, _256>, Shape<_1, _1, _1>, gemm::KernelTmaWarpSpecialized1SmNvf4Sm100, epilogue::TmaWarpSpecialized1Sm, 32> {};
template <>
struct Case<6> : Config<Sm100, Scaled, cutlass::nv_float4_t<cutlass::float_e2m1_t>, float, Shape<_256, _128, _256>, Shape<_2, _1, _1>, gemm::KernelTmaWarpSpecialized2SmNvf4Sm100, epilogue::TmaWarpSpecialized2Sm, 32> {};
template <>
struct Case<7> : Config<Sm100, Scaled, cutlass::mx_float8_t<cutlass::float_e4m3_t>, float, Shape<_128, _128, _128>, Shape<_1, _1, _1>, gemm::KernelTmaWarpSpecialized1SmMxf8f6f4Sm100, epilogue::TmaWarpSpecialized1Sm, 16> {};
template <>
struct Case<8> : Config<Sm100, Plain, cutlass::half_t, cutlass::half_t, Shape<_128, _64, _64>, Shape<_1, _1, _1>, gemm::KernelTmaWarpSpecialized1SmSm100, epilogue::TmaWarpSpecialized1Sm, 8, gemm::StreamKScheduler> {};
template <>
struct Case<9> : Config<Sm100, Plain, cutlass::half_t, cutlass::half_t, Shape<_128, _128, _64>, Shape<_1, _1, _1>, gemm::KernelPtrArrayTmaWarpSpecialized1SmSm100, epilogue::PtrArrayTmaWarpSpecialized1Sm, 8, void, true> {};
template <>
struct Case<10> : Config<Sm100, Plain, cutlass::bfloat16_t, float, Shape<_256, _128, _64>, Shape<_2, _1, _1>, gemm::KernelPtrArrayTmaWarpSpecialized2SmSm100, epilogue::PtrArrayTmaWarpSpecialized2Sm, 8, void, true> {};

using Chosen = Case<CASE>;
// C = A B^T: K is contiguous in both. There is no source matrix.
using Epilogue = typename epilogue::collective::CollectiveBuilder<
    Chosen::Arch, Chosen::Class, Chosen::Tile, Chosen::Cluster, epilogue::collective::EpilogueTileAuto, float, float, void, Chosen::Of<cutlass::layout::RowMajor>, 4, Chosen::D,
    Chosen::Of<cutlass::layout::RowMajor>, 16 / sizeof(Chosen::D), Chosen::Epilogue>::CollectiveOp;
using Mainloop = typename gemm::collective::CollectiveBuilder<
    Chosen::Arch, Chosen::Class, Chosen::A, Chosen::Of<cutlass::layout::RowMajor>, Chosen::alignment, Chosen::A, Chosen::Of<cutlass::layout::ColumnMajor>, Chosen::alignment, float, Chosen::Tile, Chosen::Cluster,
    gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>, Chosen::Mainloop>::CollectiveOp;
using Sizes = cute::conditional_t<Chosen::grouped, gemm::GroupProblemShape<Shape<int, int, int>>, Shape<int, int, int, int>>;
using Kernel = gemm::kernel::GemmUniversal<Sizes, Mainloop, Epilogue, Chosen::Scheduler>;

extern "C" __global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock, Kernel::MinBlocksPerMultiprocessor) cutlass_product(CUTLASS_GRID_CONSTANT typename Kernel::Params const params) {
#ifndef LAYOUT
    extern __shared__ char smem[];
    Kernel kernel;
    kernel(params, smem);
#endif
}

#ifdef LAYOUT
// Instead of the driver's: the arguments are kept, and the map is a mark to find it by.
struct Encoded {
    CUtensorMapDataType type;
    unsigned rank;
    unsigned long long address;
    std::vector<unsigned long long> dims, strides;
    std::vector<unsigned> box, steps;
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapFloatOOBfill fill;
};
static std::vector<Encoded> encoded;
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                           const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    memset(map, 0xC0 + (int)encoded.size(), sizeof(*map));
    encoded.push_back({type, rank, (unsigned long long)address, {dims, dims + rank}, {strides, strides + rank - 1}, {box, box + rank}, {steps, steps + rank}, interleave, swizzle, fill});
    return CUDA_SUCCESS;
}
template <class T>
void print(const char* name, const std::vector<T>& v) {
    printf(" %s=", name);
    for (size_t i = 0; i < v.size(); i++) printf(i ? ",%llu" : "%llu", (unsigned long long)v[i]);
}

static char* at(unsigned long long i) { return (char*)(i << 40); }
// Scale factors of the kernels that have them.
template <class M, class Arguments, class Shape>
void set_scales(Arguments& args, Shape shape) {
    if constexpr (Chosen::scaled) {
        using Blocks = typename M::Sm1xxBlkScaledConfig;
        args.ptr_SFA = (decltype(args.ptr_SFA))at(4);
        args.ptr_SFB = (decltype(args.ptr_SFB))at(5);
        args.layout_SFA = Blocks::tile_atom_to_shape_SFA(shape);
        args.layout_SFB = Blocks::tile_atom_to_shape_SFB(shape);
    }
}

// One product of M x N x K.
template <class Arguments>
void set_product(Arguments& args, int m, int n, int k) {
    auto shape = make_shape(m, n, k, 1);
    args.mode = gemm::GemmUniversalMode::kGemm;
    args.problem_shape = shape;
    args.mainloop.ptr_A = (decltype(args.mainloop.ptr_A))at(1);
    args.mainloop.ptr_B = (decltype(args.mainloop.ptr_B))at(2);
    args.mainloop.dA = cutlass::make_cute_packed_stride(decltype(args.mainloop.dA){}, {m, k, 1});
    args.mainloop.dB = cutlass::make_cute_packed_stride(decltype(args.mainloop.dB){}, {n, k, 1});
    set_scales<Mainloop>(args.mainloop, shape);
    args.epilogue.ptr_D = (Chosen::D*)at(3);
    args.epilogue.dD = cutlass::make_cute_packed_stride(decltype(args.epilogue.dD){}, {m, n, 1});
    if constexpr (!cute::is_void_v<Chosen::Scheduler>) {
        // All tiles are cut along K, whatever the heuristics would say of so few.
        args.scheduler.decomposition_mode = decltype(args.scheduler.decomposition_mode)::StreamK;
    }
}
// Groups, by arrays on the device.
template <class Arguments>
void set_groups(Arguments& args, int groups) {
    args.mode = gemm::GemmUniversalMode::kGrouped;
    args.problem_shape = {groups, (decltype(args.problem_shape.problem_shapes))at(7), nullptr};
    args.mainloop.ptr_A = (decltype(args.mainloop.ptr_A))at(8);
    args.mainloop.ptr_B = (decltype(args.mainloop.ptr_B))at(9);
    args.epilogue.ptr_D = (decltype(args.epilogue.ptr_D))at(10);
    args.mainloop.dA = (decltype(args.mainloop.dA))at(11);
    args.mainloop.dB = (decltype(args.mainloop.dB))at(12);
    args.epilogue.dD = (decltype(args.epilogue.dD))at(13);
    static_assert(sizeof(*args.mainloop.dA) == 8 && sizeof(*args.epilogue.dD) == 8 && sizeof(*args.problem_shape.problem_shapes) == 12);
}
template <class Arguments>
void set(Arguments& args, char** argv) {
    if constexpr (Chosen::grouped) {
        set_groups(args, atoi(argv[1]));
    } else {
        set_product(args, atoi(argv[1]), atoi(argv[2]), atoi(argv[3]));
    }
}

int main(int argc, char** argv) {
    typename Kernel::Arguments args{};
    set(args, argv);
    args.epilogue.thread.alpha = 1;
    args.epilogue.thread.beta = 0;
    args.hw_info.sm_count = 4;
    args.hw_info.max_active_clusters = 2;
    args.hw_info.cluster_shape = dim3(size<0>(Chosen::Cluster{}), size<1>(Chosen::Cluster{}), 1);
    args.hw_info.cluster_shape_fallback = args.hw_info.cluster_shape;
    alignas(128) static unsigned char bytes[sizeof(typename Kernel::Params)];
    auto* params = new (bytes) typename Kernel::Params(Kernel::to_underlying_arguments(args, at(6)));
    dim3 grid = Kernel::get_grid_shape(*params), block = Kernel::get_block_shape();
    printf("launch grid=%u,%u,%u block=%u,%u,%u cluster=%d,%d,%d smem=%d size=%zu workspace=%zu\n", grid.x, grid.y, grid.z, block.x, block.y, block.z, (int)size<0>(Chosen::Cluster{}),
           (int)size<1>(Chosen::Cluster{}), (int)size<2>(Chosen::Cluster{}), (int)Kernel::SharedStorageSize, sizeof(bytes), Kernel::get_workspace_size(args));
    for (auto& e : encoded) {
        printf("map type=%d address=%llu interleave=%d swizzle=%d fill=%d", (int)e.type, e.address, (int)e.interleave, (int)e.swizzle, (int)e.fill);
        print("dims", e.dims);
        print("strides", e.strides);
        print("box", e.box);
        print("steps", e.steps);
        puts("");
    }
    printf("bytes ");
    for (unsigned char b : bytes) printf("%02x", b);
    puts("");
}
#endif
