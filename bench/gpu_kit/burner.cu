/* Holds memory of a GPU and keeps a given share of its multiprocessors busy for a given share of the time.
 *
 *   burner --mib 512 --duty 50 --sms 100 --seconds 10
 *
 * It prints "ready" once the memory is held and the first period has run. SIGTERM ends it. Exit code 2: no memory left.
 */
#include <cuda_runtime.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PERIOD_NS 100000000LL
#define MIB (1024ULL * 1024ULL)

static volatile sig_atomic_t ends;

static void on_signal(int number) {
    (void)number;
    ends = 1;
}

__device__ static unsigned long long nanoseconds(void) {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

/* One block has a multiprocessor to itself, by the shared memory that it asks for. */
__global__ void burn(unsigned long long for_ns, unsigned int *sink) {
    extern __shared__ unsigned int taken[];
    unsigned long long until = nanoseconds() + for_ns;
    unsigned int value = threadIdx.x + 1;
    while (nanoseconds() < until)
        for (int i = 0; i < 256; i++)
            value = value * 1664525u + 1013904223u;
    taken[threadIdx.x] = value;
    if (value == 0)
        *sink = taken[threadIdx.x];
}

static void check(cudaError_t result, const char *what) {
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
    exit(result == cudaErrorMemoryAllocation ? 2 : 1);
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void sleep_until(long long at_ns) {
    struct timespec at = {at_ns / 1000000000LL, at_ns % 1000000000LL};
    while (!ends && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        ;
}

static double option(int argc, char **argv, const char *name, double otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return atof(argv[i + 1]);
    return otherwise;
}

/* Memory in pieces, since one allocation as large as what is free may fail. `but_mib` of what is free is left; then less
 * than that is no error, since another program may have taken some at the same time. */
static void hold(double mib, double but_mib) {
    size_t free_bytes, total;
    if (but_mib >= 0) {
        check(cudaMemGetInfo(&free_bytes, &total), "memory info");
        mib = (double)(free_bytes / MIB) - but_mib;
    }
    for (double left = mib; left > 0; left -= 256) {
        void *piece;
        size_t bytes = (size_t)((left < 256 ? left : 256) * MIB);
        cudaError_t result = cudaMalloc(&piece, bytes);
        if (but_mib >= 0 && result == cudaErrorMemoryAllocation)
            break;
        check(result, "memory");
        check(cudaMemset(piece, 1, bytes), "memory set");
    }
}

int main(int argc, char **argv) {
    double duty = option(argc, argv, "--duty", 0) / 100, sms = option(argc, argv, "--sms", 100) / 100;
    long long end = now_ns() + (long long)(option(argc, argv, "--seconds", 60) * 1e9);
    unsigned int *sink;
    int processors, most_shared;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "flags");
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    check(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "shared memory");
    check(cudaFuncSetAttribute(burn, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared), "kernel");
    check(cudaMalloc((void **)&sink, 4), "memory");
    hold(option(argc, argv, "--mib", 0), option(argc, argv, "--all-but-mib", -1));
    int blocks = (int)(processors * sms + 0.5);
    blocks = blocks < 1 ? 1 : blocks;
    int ready = 0;
    for (long long next = now_ns(); !ends && next < end; next += PERIOD_NS) {
        if (duty > 0) {
            burn<<<blocks, 128, most_shared>>>((unsigned long long)(duty * PERIOD_NS), sink);
            check(cudaGetLastError(), "launch");
            check(cudaDeviceSynchronize(), "run");
        }
        if (!ready++) {
            printf("ready: %d of %d multiprocessors\n", blocks, processors);
            fflush(stdout);
        }
        sleep_until(next + PERIOD_NS);
    }
    return 0;
}
