/* A layer of GRU, forward and backward, then a scan, on the caller's memory. */
#include "riverrun.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, STEPS = 3, INPUTS = 4, HIDDEN = 5, GATES = 3 };

static void fill(float *x, int count, unsigned seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 24) - 0.5f;
    }
}

static void done(RiverrunStatus status) {
    if (status != RIVERRUN_STATUS_OK) {
        fprintf(stderr, "riverrun: %s\n", riverrun_error());
        exit(1);
    }
}

int main(void) {
    static float x[BATCH * STEPS * INPUTS], w_ih[GATES * HIDDEN * INPUTS], w_hh[GATES * HIDDEN * HIDDEN];
    static float h[BATCH * STEPS * HIDDEN], h_last[BATCH * HIDDEN], d_h[BATCH * STEPS * HIDDEN], d_x[BATCH * STEPS * INPUTS];
    fill(x, BATCH * STEPS * INPUTS, 1);
    fill(w_ih, GATES * HIDDEN * INPUTS, 2);
    fill(w_hh, GATES * HIDDEN * HIDDEN, 3);

    RiverrunCell cell = {.cell = "gru", .dtype = RIVERRUN_DTYPE_F32, .batch = BATCH, .steps = STEPS, .inputs = INPUTS, .hidden = HIDDEN};
    RiverrunCellArrays arrays = {.x = x, .w_ih = w_ih, .w_hh = w_hh};
    float *saved = malloc(riverrun_cell_saved(&cell) * sizeof *saved);
    done(riverrun_cell(&cell, &arrays, h, h_last, NULL, saved));
    for (int i = 0; i < BATCH * HIDDEN; i++) {
        int last = (i / HIDDEN * STEPS + STEPS - 1) * HIDDEN + i % HIDDEN;
        if (h_last[i] != h[last]) {
            fprintf(stderr, "the last state is not the last step's\n");
            return 1;
        }
    }

    /* The loss is the sum of all states; its slope along x[0], by differences. */
    for (int i = 0; i < BATCH * STEPS * HIDDEN; i++) d_h[i] = 1;
    RiverrunCellGradients gradients = {.x = d_x};
    done(riverrun_cell_backward(&cell, &arrays, h, saved, d_h, NULL, NULL, &gradients));
    double loss[2];
    for (int side = 0; side < 2; side++) {
        x[0] += side == 0 ? 1e-2f : -2e-2f;
        done(riverrun_cell(&cell, &arrays, h, h_last, NULL, NULL));
        loss[side] = 0;
        for (int i = 0; i < BATCH * STEPS * HIDDEN; i++) loss[side] += h[i];
    }
    double slope = (loss[0] - loss[1]) / 2e-2;
    if (fabs(slope - d_x[0]) > 1e-3) {
        fprintf(stderr, "the gradient is %g, not %g\n", d_x[0], slope);
        return 1;
    }

    /* h_t = h_{t-1} / 2 + 1, two channels, the second one starting again at the last step. */
    double a[4 * 2], b[4 * 2], states[4 * 2];
    for (int i = 0; i < 8; i++) a[i] = 0.5, b[i] = 1;
    a[3 * 2 + 1] = 0;
    RiverrunScan scan = {.gate = "raw", .dtype = RIVERRUN_DTYPE_F64, .batch = 1, .steps = 4, .dim = 2};
    const void *inputs[] = {a, b};
    done(riverrun_scan(&scan, inputs, NULL, NULL, states));
    printf("%g %g\n", states[6], states[7]);

    /* The gradients of the first step's b, where the loss is the sum of all states. */
    double ones[4 * 2], d_a[4 * 2], d_b[4 * 2];
    for (int i = 0; i < 8; i++) ones[i] = 1;
    void *d_inputs[] = {d_a, d_b};
    done(riverrun_scan_backward(&scan, inputs, NULL, NULL, states, ones, NULL, d_inputs, NULL));
    printf("%g %g\n", d_b[0], d_b[1]);

    scan.gate = "no such gate";
    if (riverrun_scan(&scan, inputs, NULL, NULL, states) != RIVERRUN_STATUS_INVALID) return 1;
    printf("%s\n", riverrun_error());
    scan.gate = "raw";
    scan.dtype = 9;
    if (riverrun_scan(&scan, inputs, NULL, NULL, states) != RIVERRUN_STATUS_INVALID) return 1;
    printf("%s\n", riverrun_error());
    scan.dtype = RIVERRUN_DTYPE_F64;
    if (riverrun_scan(&scan, inputs, NULL, NULL, NULL) != RIVERRUN_STATUS_INVALID) return 1;
    printf("%s\n", riverrun_error());
    free(saved);
    return 0;
}
