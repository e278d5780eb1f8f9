// Control flow, calls, and the spaces that variables live in.
#include <stdint.h>

#define KERNEL extern "C" __global__ void

// Tables: constants, module variables with and without initial values, and pointers between them.
__constant__ float polynomial[3][5] = {{1, 2, 3, 4, 5}, {0.5f, -1, 0.25f, 2, -3}, {7, 0, -7, 1, 0.125f}};
__constant__ double thirds[] = {1.0 / 3, 2.0 / 3};
__constant__ short lookup[64] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
struct Entry {
    char kind;
    short weight;
    long long bias;
};
__constant__ Entry entries[4] = {{1, 10, 100}, {2, -20, -1LL << 40}, {3, 30, 7}, {-4, -40, 12}};
__device__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__device__ const int* chosen[2] = {primes + 4, primes};
__device__ int counter = 5;
__device__ int visited[64];

KERNEL tables(const int* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    float y = (v & 15) * 0.25f, sum = 0;
    for (int k = 0; k < 5; k++) sum = sum * y + polynomial[v % 3][k];
    Entry e = entries[(v >> 2) & 3];
    atomicAdd(&counter, 1);
    atomicAdd(&visited[v & 63], 1);
    out[i] = sum + thirds[v & 1] + lookup[v & 63] * 1000 + e.kind + e.weight + (double)e.bias + chosen[v & 1][v & 3];
}

// A second kernel of the module.
KERNEL totals(int* out) {
    out[0] = counter;
    for (int k = 0; k < 64; k++) out[1 + k] = visited[k];
}

// Calls that are not inlined: aggregates by value, references to locals, several results.
struct Complex {
    float re, im;
    int steps;
};
__noinline__ __device__ Complex square(Complex z, float cr, float ci) {
    return {z.re * z.re - z.im * z.im + cr, 2 * z.re * z.im + ci, z.steps + 1};
}
__noinline__ __device__ bool divide(long long a, long long b, long long& quotient, short& remainder) {
    if (b == 0) return false;
    quotient = a / b;
    remainder = (short)(a % b);
    return true;
}
__noinline__ __device__ double polynomial_of(const double* coefficients, int count, double x) {
    double sum = 0;
    for (int k = 0; k < count; k++) sum = sum * x + coefficients[k];
    return sum;
}
KERNEL calls(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Complex z = {0, 0, 0};
    float cr = x[2 * i], ci = x[2 * i + 1];
    while (z.re * z.re + z.im * z.im < 4 && z.steps < 50) z = square(z, cr, ci);
    long long q = -1;
    short r = -1;
    bool ok = divide((long long)(cr * 1e12f), z.steps % 5, q, r);
    double c[4] = {cr, ci, 1.5, (double)z.steps};
    out[4 * i] = z.steps;
    out[4 * i + 1] = ok ? (float)q : -7.0f;
    out[4 * i + 2] = r;
    out[4 * i + 3] = (float)polynomial_of(c, 3 + (i & 1), 0.5);
}

// A byte code: a dense switch in a loop, with a stack in local memory.
KERNEL interpreter(const unsigned char* code, const int* x, int* out, int length, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int stack[16], top = 0, pc = (i & 3) * length, end = pc + length;
    while (pc < end) {
        switch (code[pc++]) {
            case 0: stack[top++] = x[i]; break;
            case 1: stack[top++] = code[pc++]; break;
            case 2: top--; stack[top - 1] += stack[top]; break;
            case 3: top--; stack[top - 1] -= stack[top]; break;
            case 4: top--; stack[top - 1] *= stack[top]; break;
            case 5: top--; stack[top - 1] ^= stack[top]; break;
            case 6: stack[top] = stack[top - 1]; top++; break;
            case 7: { int t = stack[top - 1]; stack[top - 1] = stack[top - 2]; stack[top - 2] = t; break; }
            case 8: stack[top - 1] = -stack[top - 1]; break;
            case 9: if (stack[--top] < 0) pc += code[pc]; else pc++; break;
            case 10: stack[top - 1] = stack[top - 1] / 3; break;
            default: pc = end; break;
        }
    }
    out[i] = stack[0] + (top << 28);
}

// Sorting in local memory, with nested loops that lanes leave at different times.
KERNEL local_sort(const short* x, short* out, int* moves) {
    short v[24];
    int t = blockIdx.x * blockDim.x + threadIdx.x, count = 8 + t % 17, moved = 0;
    for (int k = 0; k < count; k++) v[k] = x[t * 24 + k];
#pragma unroll 1
    for (int k = 1; k < count; k++) {
        short key = v[k];
        int j = k - 1;
        while (j >= 0 && v[j] > key) {
            v[j + 1] = v[j];
            j--;
            if (++moved == 1000) goto done;
        }
        v[j + 1] = key;
    }
done:
    for (int k = 0; k < 24; k++) out[t * 24 + k] = k < count ? v[k] : -1;
    moves[t] = moved;
}
