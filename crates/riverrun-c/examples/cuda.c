/* A scan on a CUDA stream and in a CUDA graph, and a GRU on the stream, forward and backward, beside the same on the CPU. */
#define RIVERRUN_CUDA
#include "riverrun.h"

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 4, STEPS = 1000, DIM = 256, STATES = BATCH * STEPS * DIM };
enum { SEQUENCES = 8, WORDS = 50, HIDDEN = 64, GATES = 3 * HIDDEN, ROWS = SEQUENCES * WORDS };

static cudaStream_t stream;
static int failed;

static void cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void done(RiverrunStatus status) {
    if (status != RIVERRUN_STATUS_OK) {
        fprintf(stderr, "riverrun: %s\n", riverrun_error());
        exit(1);
    }
}

/* Numbers from `low` to `high`, or zeros for `low = high`. */
static float *numbers(size_t count, float low, float high) {
    static unsigned seed = 1;
    float *x = calloc(count, sizeof *x);
    for (size_t i = 0; i < count && low < high; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = low + (high - low) * ((float)(seed >> 8) / (1 << 24));
    }
    return x;
}

/* Memory on the GPU: a copy of `x`, or NaN. */
static float *on_gpu(const float *x, size_t count) {
    void *memory;
    cuda(cudaMalloc(&memory, count * sizeof *x));
    if (x != NULL) cuda(cudaMemcpyAsync(memory, x, count * sizeof *x, cudaMemcpyHostToDevice, stream));
    else cuda(cudaMemsetAsync(memory, 0xff, count * sizeof *x, stream));
    return memory;
}

static float *from_gpu(const float *x, size_t count) {
    float *copy = numbers(count, 0, 0);
    cuda(cudaMemcpyAsync(copy, x, count * sizeof *x, cudaMemcpyDeviceToHost, stream));
    cuda(cudaStreamSynchronize(stream));
    return copy;
}

/* Compares arrays of the CPU whose largest number is `scale`, or their own. */
static void same(const char *what, const float *expected, const float *found, size_t count, double roundings, double scale) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)expected[i] - found[i]);
        if (!(error <= most)) most = error;
        largest = fmax(largest, fabs(expected[i]));
    }
    double limit = roundings * FLT_EPSILON * (scale > 0 ? scale : largest);
    printf("%-16s largest difference %.2e, at most %.2e\n", what, most, limit);
    if (!(most <= limit)) failed = 1;
}

static double microseconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The arrays of a scan, on either side. */
typedef struct {
    float *in[2], *h0, *h, *d_h, *d_in[2], *d_h0;
} Scan;

static const RiverrunScan raw = {.gate = "raw", .dtype = RIVERRUN_DTYPE_F32, .batch = BATCH, .steps = STEPS, .dim = DIM};

static void scan(RiverrunCuda *place, const Scan *x) {
    const void *inputs[] = {x->in[0], x->in[1]};
    done(riverrun_cuda_scan(place, &raw, inputs, x->h0, NULL, x->h));
}

static void scan_backward(RiverrunCuda *place, const Scan *x) {
    const void *inputs[] = {x->in[0], x->in[1]};
    void *d_inputs[] = {x->d_in[0], x->d_in[1]};
    done(riverrun_cuda_scan_backward(place, &raw, inputs, x->h0, NULL, x->h, x->d_h, NULL, d_inputs, x->d_h0));
}

/* A factor is below 0.9: an error fades to a tenth of its sum. A step rounds three times, where maps of steps are composed too, and each
   side has errors: 60 roundings of the largest number. The gradient of `a` is a product of two such. */
static void check_scan(const char *where, const Scan *cpu, const Scan *gpu) {
    float *h = from_gpu(gpu->h, STATES), *d_a = from_gpu(gpu->d_in[0], STATES);
    float *d_b = from_gpu(gpu->d_in[1], STATES), *d_h0 = from_gpu(gpu->d_h0, BATCH * DIM);
    double most_h = 0, most_d = 0;
    for (size_t i = 0; i < STATES; i++) {
        most_h = fmax(most_h, fabs(cpu->h[i]));
        most_d = fmax(most_d, fabs(cpu->d_in[1][i]));
    }
    printf("scan, %s\n", where);
    same("  h", cpu->h, h, STATES, 60, most_h);
    same("  gradient of a", cpu->d_in[0], d_a, STATES, 122, most_h * most_d);
    same("  gradient of b", cpu->d_in[1], d_b, STATES, 60, most_d);
    same("  gradient of h0", cpu->d_h0, d_h0, BATCH * DIM, 60, most_d);
    free(h), free(d_a), free(d_b), free(d_h0);
}

static void scans(RiverrunCuda *place) {
    Scan cpu = {.in = {numbers(STATES, 0.5f, 0.9f), numbers(STATES, -1, 1)}, .h0 = numbers(BATCH * DIM, -1, 1)};
    cpu.h = numbers(STATES, 0, 0), cpu.d_h = numbers(STATES, -1, 1), cpu.d_h0 = numbers(BATCH * DIM, 0, 0);
    cpu.d_in[0] = numbers(STATES, 0, 0), cpu.d_in[1] = numbers(STATES, 0, 0);
    const void *inputs[] = {cpu.in[0], cpu.in[1]};
    void *d_inputs[] = {cpu.d_in[0], cpu.d_in[1]};
    done(riverrun_scan(&raw, inputs, cpu.h0, NULL, cpu.h));
    done(riverrun_scan_backward(&raw, inputs, cpu.h0, NULL, cpu.h, cpu.d_h, NULL, d_inputs, cpu.d_h0));

    Scan gpu = {.in = {on_gpu(cpu.in[0], STATES), on_gpu(cpu.in[1], STATES)}, .h0 = on_gpu(cpu.h0, BATCH * DIM)};
    gpu.h = on_gpu(NULL, STATES), gpu.d_h = on_gpu(cpu.d_h, STATES), gpu.d_h0 = on_gpu(NULL, BATCH * DIM);
    gpu.d_in[0] = on_gpu(NULL, STATES), gpu.d_in[1] = on_gpu(NULL, STATES);

    /* Both calls are prepared, and share the larger scratch memory. */
    scan(place, &gpu);
    size_t bytes = place->scratch_bytes;
    scan_backward(place, &gpu);
    if (bytes < place->scratch_bytes) bytes = place->scratch_bytes;
    cuda(cudaMalloc(&place->scratch, place->scratch_bytes = bytes));
    scan(place, &gpu);
    scan_backward(place, &gpu);
    check_scan("on a stream", &cpu, &gpu);

    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    scan(place, &gpu);
    scan_backward(place, &gpu);
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiateWithFlags(&replay, graph, 0));
    for (int time = 0; time < 3; time++) {
        cuda(cudaMemsetAsync(gpu.h, 0xff, STATES * sizeof(float), stream));
        cuda(cudaMemsetAsync(gpu.d_in[1], 0xff, STATES * sizeof(float), stream));
        cuda(cudaGraphLaunch(replay, stream));
    }
    check_scan("in a graph", &cpu, &gpu);

    static double times[1000];
    for (int i = 0; i < 1000; i++) {
        double start = microseconds();
        scan(place, &gpu);
        times[i] = microseconds() - start;
        if (i % 50 == 49) cuda(cudaStreamSynchronize(stream));
    }
    qsort(times, 1000, sizeof *times, ascending);
    printf("a call takes %.1f microseconds of the host\n", times[500]);
}

/* On the CPU the input's weights are a unit matrix: the input is its product. */
static void cells(RiverrunCuda *place) {
    float *xg = numbers(ROWS * GATES, -0.5f, 0.5f), *one = numbers(GATES * GATES, 0, 0);
    for (int i = 0; i < GATES; i++) one[i * GATES + i] = 1;
    float *u = numbers(GATES * HIDDEN, -1.0f / 256, 1.0f / 256), *u_t = numbers(GATES * HIDDEN, 0, 0);
    for (int i = 0; i < GATES * HIDDEN; i++) u_t[i % HIDDEN * GATES + i / HIDDEN] = u[i];
    float *b_hh = numbers(GATES, 0, 0), *h0 = numbers(SEQUENCES * HIDDEN, -0.5f, 0.5f), *d_h = numbers(ROWS * HIDDEN, -1, 1);
    float *h = numbers(ROWS * HIDDEN, 0, 0), *h_last = numbers(SEQUENCES * HIDDEN, 0, 0), *d_xg = numbers(ROWS * GATES, 0, 0);
    float *d_b = numbers(GATES, 0, 0), *d_h0 = numbers(SEQUENCES * HIDDEN, 0, 0);
    RiverrunCell gru = {.cell = "gru", .dtype = RIVERRUN_DTYPE_F32, .batch = SEQUENCES, .steps = WORDS, .inputs = GATES, .hidden = HIDDEN};
    size_t saves = riverrun_cell_saved(&gru);
    float *saved = numbers(saves, 0, 0);
    RiverrunCellArrays cpu = {.x = xg, .w_ih = one, .w_hh = u, .b_hh = b_hh, .h0 = h0};
    RiverrunCellGradients d_cpu = {.x = d_xg, .b_hh = d_b, .h0 = d_h0};
    done(riverrun_cell(&gru, &cpu, h, h_last, NULL, saved));
    done(riverrun_cell_backward(&gru, &cpu, h, saved, d_h, NULL, NULL, &d_cpu));

    RiverrunCudaCellArrays gpu = {.xg = on_gpu(xg, ROWS * GATES), .w_hh = on_gpu(u, GATES * HIDDEN), .w_hh_t = on_gpu(u_t, GATES * HIDDEN)};
    gpu.b_hh = on_gpu(b_hh, GATES), gpu.h0 = on_gpu(h0, SEQUENCES * HIDDEN);
    float *g_h = on_gpu(NULL, ROWS * HIDDEN), *g_last = on_gpu(NULL, SEQUENCES * HIDDEN), *g_saved = on_gpu(NULL, saves);
    float *g_d_h = on_gpu(d_h, ROWS * HIDDEN);
    RiverrunCudaCellGradients d = {.a = on_gpu(NULL, ROWS * GATES), .xg = on_gpu(NULL, ROWS * GATES), .before = on_gpu(NULL, ROWS * HIDDEN)};
    d.h0 = on_gpu(NULL, SEQUENCES * HIDDEN);
    for (int pass = 0; pass < 2; pass++) {
        place->scratch = NULL;
        for (int ready = 0; ready < 2; ready++) {
            if (ready) cuda(cudaMalloc(&place->scratch, place->scratch_bytes));
            if (pass == 0) done(riverrun_cuda_cell(place, &gru, &gpu, g_h, g_last, NULL, g_saved));
            else done(riverrun_cuda_cell_backward(place, &gru, &gpu, g_h, g_saved, g_d_h, NULL, NULL, &d));
        }
    }

    /* With these weights a step multiplies an error of the state before by less than 0.9, and adds less than 16 roundings of its own: 320
       for both sides. Gradients have such errors at every step, and fade as slowly. */
    printf("GRU, on a stream\n");
    float *f_h = from_gpu(g_h, ROWS * HIDDEN), *f_a = from_gpu(d.a, ROWS * GATES), *f_before = from_gpu(d.before, ROWS * HIDDEN);
    same("  h", h, f_h, ROWS * HIDDEN, 320, 1);
    same("  last h", h_last, from_gpu(g_last, SEQUENCES * HIDDEN), SEQUENCES * HIDDEN, 320, 1);
    same("  gradient of xg", d_xg, from_gpu(d.xg, ROWS * GATES), ROWS * GATES, 3200, 0);
    same("  gradient of h0", d_h0, from_gpu(d.h0, SEQUENCES * HIDDEN), SEQUENCES * HIDDEN, 3200, 0);
    float *sum = numbers(GATES, 0, 0), *shifted = numbers(ROWS * HIDDEN, 0, 0);
    double most = 0;
    for (int i = 0; i < ROWS * GATES; i++) sum[i % GATES] += f_a[i], most = fmax(most, fabs(f_a[i]));
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        int row = i / HIDDEN, unit = i % HIDDEN;
        shifted[i] = row % WORDS > 0 ? f_h[i - HIDDEN] : h0[row / WORDS * HIDDEN + unit];
    }
    same("  gradient of b_hh", d_b, sum, GATES, 3200 + ROWS, ROWS * most);
    same("  states before", shifted, f_before, ROWS * HIDDEN, 0, 1);
}

int main(int count, char **arguments) {
    int device = count > 1 ? atoi(arguments[1]) : 0;
    cuda(cudaSetDevice(device));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RiverrunCuda place = {.device = (uint16_t)device, .stream = stream};
    scans(&place);
    cells(&place);
    done(riverrun_cuda_fault(place.device));
    printf(failed ? "differences exceed their limits\n" : "ok\n");
    return failed;
}
