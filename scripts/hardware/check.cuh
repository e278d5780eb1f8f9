// Ends the program with the call and its line where the CUDA runtime returns an error.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error = (call);                                                       \
        if (error != cudaSuccess) {                                                       \
            fprintf(stderr, "%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)
