// Arithmetic that CUDA C++ programs meet: each thread works on elements of its own.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <stdint.h>

#define KERNEL extern "C" __global__ void

// A grid-stride loop over vectors, and a tail of scalars. The coefficients come as a struct.
struct Coefficients {
    char tag;
    float scale;
    double shift;
    short2 clamp;
};

KERNEL axpy(const float* __restrict__ x, float* __restrict__ y, long long n, Coefficients c) {
    long long stride = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float low = c.clamp.x, high = c.clamp.y;
    auto f = [&](float a, float b) { return fminf(fmaxf(fmaf(c.scale, a, b) + (float)c.shift, low), high); };
    for (long long i = first; i < n / 4; i += stride) {
        float4 a = reinterpret_cast<const float4*>(x)[i], b = reinterpret_cast<float4*>(y)[i];
        reinterpret_cast<float4*>(y)[i] = make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
    }
    for (long long i = n / 4 * 4 + first; i < n; i += stride) y[i] = f(x[i], y[i]);
    if (c.tag != 's' && first == 0) y[0] = 0;
}

// The library of single precision. Large arguments of sine and cosine take the slow reduction.
KERNEL functions(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], p = fabsf(v) + 0.125f;
    float s, c;
    sincosf(v * 1e6f, &s, &c);
    float r[] = {expf(v), exp2f(v), exp10f(v), expm1f(v), logf(p), log2f(p), log1pf(p), sinf(v), cosf(v), tanf(v),
                 s, c, asinf(v * 0.1f), acosf(v * 0.1f), atanf(v), atan2f(v, p), sinhf(v), tanhf(v), asinhf(v),
                 erff(v), erfcf(v), erfinvf(v * 0.1f), normcdff(v), powf(p, v), cbrtf(v), hypotf(v, 2.0f), sqrtf(p),
                 rsqrtf(p), fmodf(v, 0.7f), remainderf(v, 0.7f), lgammaf(p), tgammaf(p), floorf(v), ceilf(v), rintf(v),
                 roundf(v), truncf(v), ldexpf(v, 3), copysignf(p, v), fdimf(v, 0.5f), v / p, 1.0f / p, j0f(v), sinpif(v)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

// Intrinsics: the hardware's own functions, and rounding by name.
KERNEL intrinsics(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i], p = fabsf(v) + 0.125f;
    float r[] = {__expf(v), __logf(p), __log2f(p), __sinf(v), __cosf(v), __powf(p, v), __fdividef(v, p), __saturatef(v),
                 __frcp_rn(p), __fsqrt_rn(p), __frsqrt_rn(p), __fdiv_rn(v, p), __tanf(v * 0.5f),
                 __fadd_rz(v, 1e-3f), __fadd_ru(v, 1e-3f), __fadd_rd(v, 1e-3f), __fmul_rz(v, 1.1f), __fmul_ru(v, 1.1f),
                 __fmaf_rd(v, 1.1f, 0.3f), __fdiv_ru(v, p), __fsqrt_rd(p), __frcp_rz(p)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

KERNEL doubles(const double* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], p = fabs(v) + 0.125;
    double r[] = {exp(v), log(p), sin(v), cos(v), sin(v * 1e9), tan(v), atan(v), tanh(v), erf(v), pow(p, v), cbrt(v),
                  sqrt(p), rsqrt(p), v / p, fma(v, v, p), fmod(v, 0.7), floor(v), rint(v), tgamma(p), log1p(p), hypot(v, p)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

// Integers of 32 bits: division, products, bits, packed bytes.
KERNEL integers(const int* x, const int* y, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int a = x[i], b = y[i];
    unsigned ua = a, ub = b, s = b & 31;
    int r[] = {a / b, a % b, (int)(ua / ub), (int)(ua % ub), a / 7, (int)(ua % 10u), __mulhi(a, b), (int)__umulhi(ua, ub),
               __mul24(a, b), __popc(a), __clz(a), __ffs(a), (int)__brev(a), (int)__byte_perm(a, b, 0x5140 ^ (b & 0x7777)),
               (int)__funnelshift_l(ua, ub, s), (int)__funnelshift_r(ua, ub, s), (int)__funnelshift_lc(ua, ub, 35),
               a << s, a >> s, (int)(ua >> s), __dp4a(a, b, 5), (int)__dp4a(ua, ub, 5u), __dp2a_lo(a, b, 3), __dp2a_hi(a, b, 3),
               (int)__sad(a, b, 9u), (int)__usad(ua, ub, 9u), abs(a), min(a, b), (int)max(ua, ub), __hadd(a, b), __rhadd(a, b),
               (int)__vadd4(ua, ub), (int)__vsub2(ua, ub), (int)__vmaxs2(ua, ub), (int)__vabsdiffu4(ua, ub), (int)__vcmpgtu4(ua, ub),
               (int)__vminu4(ua, ub), (int)__vavgu4(ua, ub), __vimax3_s32(a, b, 77), __viaddmin_s32(a, b, 1000),
               (int)(short)a + (signed char)b, (int)((ua >> 5) & 0x3ff)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

// Integers of 64 and 128 bits.
KERNEL wide(const long long* x, const long long* y, long long* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long a = x[i], b = y[i];
    unsigned long long ua = a, ub = b;
    __int128 p = (__int128)a * b;
    unsigned __int128 q = (unsigned __int128)ua * ub + ua;
    long long r[] = {a + b, a - b, a * b, a / b, a % b, (long long)(ua / ub), (long long)(ua % ub), __mul64hi(a, b),
                     (long long)__umul64hi(ua, ub), __popcll(a), __clzll(a), __ffsll(a), (long long)__brevll(a),
                     a << (b & 63), a >> (b & 63), (long long)(ua >> (b & 63)), a / 1000003, (long long)(p >> 40),
                     (long long)(q >> 64), (long long)(q - (unsigned __int128)p), (long long)(float)a, (long long)(double)b, llabs(a), min(a, b),
                     (long long)(p / 12345), a < b ? a : b ^ a, (long long)__double2ll_rz((double)a * 0.5)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

// Narrow formats and back; every conversion of the headers that compiles to an instruction.
KERNEL conversions(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i], w = x[i ^ 1];
    auto fp8 = [](float f, __nv_fp8_interpretation_t t) {
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(f, __NV_SATFINITE, t), t)));
    };
    __half2 h = __floats2half2_rn(v, w);
    __nv_bfloat162 b = __floats2bfloat162_rn(v, w);
    __nv_fp8x4_e4m3 four(make_float4(v, w, v * 0.5f, w * 0.25f));
    float4 back = float4(four);
    __nv_fp8x2_e5m2 two(h);
    float2 wide2 = float2(two);
    __nv_fp4x2_e2m1 fp4(make_float2(v, w));
    float2 fp4back = float2(fp4);
    __nv_fp6x2_e2m3 fp6(make_float2(v, w));
    float2 fp6back = float2(fp6);
    __nv_fp6x2_e3m2 fp6b(make_float2(v, w));
    float2 fp6bback = float2(fp6b);
    __nv_fp8_e8m0 e8;
    e8.__x = __nv_cvt_float_to_e8m0(fabsf(v), __NV_SATFINITE, cudaRoundPosInf);
    float r[] = {__half2float(__float2half_rn(v)), __half2float(__float2half_rz(v)), __half2float(__float2half_rd(v)),
                 __half2float(__float2half_ru(v)), __bfloat162float(__float2bfloat16_rn(v)), __bfloat162float(__float2bfloat16_rz(v)),
                 __high2float(h), __low2float(b), fp8(v, __NV_E4M3), fp8(v, __NV_E5M2), back.y, back.w, wide2.x,
                 fp4back.x, fp4back.y, fp6back.x, fp6bback.y, (float)e8, (float)__float2int_rn(v), (float)__float2int_ru(v),
                 (float)(signed char)v, (float)(unsigned char)__float2uint_rz(fabsf(v)), (float)__half2int_rd(__float2half(v)),
                 __half2float(__int2half_rn((int)(v * 100))), (float)(double)v, __int2float_rz((int)(v * 1e7f)),
                 (float)__float2ll_rn(v * 1e9f), __ull2float_rn((unsigned long long)(fabsf(v) * 1e15f)),
                 __half2float(__hadd_sat(__float2half(v), __float2half(0.25f))), (float)__half2short_rz(__float2half(v)),
                 __bfloat162float(__hfma(__float2bfloat16(v), __float2bfloat16(w), __float2bfloat16(0.5f)))};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}

// Arithmetic on pairs of halves.
template <typename T2, typename T>
__device__ void pairs(const T2* x, const T2* y, T2* out, int n, T2 one) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T2 a = x[i], b = y[i];
    T2 r[] = {__hadd2(a, b), __hsub2(a, b), __hmul2(a, b), __hfma2(a, b, one), __h2div(a, b), __hmax2(a, b), __hmin2(a, b),
              __hneg2(a), __habs2(b), h2exp(a), h2log(__habs2(b)), h2sqrt(__habs2(a)), h2rsqrt(__habs2(b)), h2floor(a), h2rint(b),
              __hfma2_relu(a, b, one), __hgt2(a, b), __lowhigh2highlow(a), h2sin(a), h2tanh(b)};
#pragma unroll
    for (int k = 0; k < sizeof(r) / sizeof(r[0]); k++) out[k * n + i] = r[k];
}
KERNEL halves(const __half2* x, const __half2* y, __half2* out, int n) {
    pairs<__half2, __half>(x, y, out, n, __float2half2_rn(1.0f));
}
KERNEL bfloats(const __nv_bfloat162* x, const __nv_bfloat162* y, __nv_bfloat162* out, int n) {
    pairs<__nv_bfloat162, __nv_bfloat16>(x, y, out, n, __float2bfloat162_rn(1.0f));
}
