/* A stand-in for libcuda.so.1: memory is the host's, a launch copies nothing and writes what it was given to
   FAKE_LOG, and tensor maps are their arguments in a row. FAKE_SIZES has the bytes of each kernel parameter. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *record(void) { return fopen(getenv("FAKE_LOG"), "a"); }
static void say(const char *text) { FILE *f = record(); fprintf(f, "%s\n", text); fclose(f); }

int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return device; }
int cuCtxSetCurrent(void *context) { return context == 0; }
int cuCtxSynchronize(void) { say("synchronise"); return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 218 ? "a PTX JIT compilation failed" : "other"; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) { *pointer = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *keys, void **values) {
    *module = (void *)2;
    if (count == 4 && keys[2] == 5 && strstr(text, "does not assemble")) {
        strcpy((char *)values[2], "ptxas: line 7");
        return 218;
    }
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    FILE *f = record();
    fprintf(f, "function %s\n", name);
    fclose(f);
    *function = (void *)3;
    return module != (void *)2;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    FILE *f = record();
    fprintf(f, "attribute %d %d\n", attribute, value);
    fclose(f);
    return function != (void *)3;
}
struct attribute { unsigned id, pad, value[16]; };
struct config { unsigned grid[3], block[3], shared; void *stream; struct attribute *attributes; unsigned count; };
int cuLaunchKernelEx(const struct config *c, void *function, void **params, void **extra) {
    FILE *f = record();
    fprintf(f, "launch %u,%u,%u %u,%u,%u %u", c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared);
    for (unsigned i = 0; i < c->count; i++)
        fprintf(f, " [%u: %u,%u,%u]", c->attributes[i].id, c->attributes[i].value[0], c->attributes[i].value[1], c->attributes[i].value[2]);
    fprintf(f, "\n");
    const char *sizes = getenv("FAKE_SIZES");
    for (int i = 0; sizes && *sizes; i++) {
        int n = (int)strtol(sizes, (char **)&sizes, 10);
        if (*sizes == ',') sizes++;
        fprintf(f, "param ");
        for (int k = 0; k < n; k++) fprintf(f, "%02x", ((unsigned char *)params[i])[k]);
        fprintf(f, "\n");
    }
    fclose(f);
    return function != (void *)3 || extra != 0;
}
static void list(FILE *f, const char *name, int n, const uint64_t *a, const int *b) {
    fprintf(f, " %s", name);
    for (int i = 0; i < n; i++) fprintf(f, "%c%lld", i ? ',' : ' ', a ? (long long)a[i] : (long long)b[i]);
}
static int map(const char *kind, void *out, int type, unsigned rank, const uint64_t *dims, const uint64_t *strides, FILE *f) {
    if ((uintptr_t)out % 64) return 1;
    memset(out, 0x5a, 128);
    fprintf(f, "%s type %d", kind, type);
    list(f, "dims", (int)rank, dims, 0);
    list(f, "strides", (int)rank - 1, strides, 0);
    return 0;
}
int cuTensorMapEncodeTiled(void *out, int type, unsigned rank, void *at, const uint64_t *dims, const uint64_t *strides,
                           const int *box, const int *steps, int interleave, int swizzle, int promotion, int fill) {
    FILE *f = record();
    int bad = map("tiled", out, type, rank, dims, strides, f) || at == 0;
    list(f, "box", (int)rank, 0, box);
    list(f, "steps", (int)rank, 0, steps);
    fprintf(f, " modes %d %d %d %d\n", interleave, swizzle, promotion, fill);
    fclose(f);
    return bad;
}
int cuTensorMapEncodeIm2col(void *out, int type, unsigned rank, void *at, const uint64_t *dims, const uint64_t *strides,
                            const int *lower, const int *upper, unsigned channels, unsigned pixels, const int *steps,
                            int interleave, int swizzle, int promotion, int fill) {
    FILE *f = record();
    int bad = map("im2col", out, type, rank, dims, strides, f) || at == 0;
    list(f, "lower", (int)rank - 2, 0, lower);
    list(f, "upper", (int)rank - 2, 0, upper);
    fprintf(f, " channels %u pixels %u", channels, pixels);
    list(f, "steps", (int)rank, 0, steps);
    fprintf(f, " modes %d %d %d %d\n", interleave, swizzle, promotion, fill);
    fclose(f);
    return bad;
}
