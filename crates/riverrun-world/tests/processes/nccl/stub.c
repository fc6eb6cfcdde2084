/* Stands in for NCCL where there is no GPU: it writes down its calls, moves nothing, and fails as the tests ask. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } Id;

static volatile int aborted, reported;
static int communicator;

static int version(void) {
    const char *own = getenv("STUB_VERSION");
    return own ? atoi(own) : 22809;
}

int ncclGetVersion(int *v) { *v = version(); return 0; }
int ncclGetUniqueId(Id *id) { memset(id->bytes, 'i', sizeof id->bytes); return 0; }
const char *ncclGetErrorString(int code) { return code == 6 ? "remote process exited" : "an error"; }

int ncclCommInitRank(void **comm, int size, Id id, int rank) {
    fprintf(stderr, "init %d of %d %c%c\n", rank, size, id.bytes[0], id.bytes[127]);
    *comm = &communicator;
    return 0;
}

int ncclCommDestroy(void *comm) { fprintf(stderr, "destroy %d\n", comm == &communicator); return 0; }

int ncclCommAbort(void *comm) {
    fprintf(stderr, "abort %d\n", comm == &communicator);
    aborted = 1;
    return 0;
}

int ncclCommGetAsyncError(void *comm, int *code) { (void)comm; *code = reported; return 0; }

/* Lengths with a meaning: 13 hangs until the communicator is aborted, 14 is reported later, 15 fails at once. */
static int done(size_t n) {
    while (n == 13 && !aborted) usleep(1000);
    if (n == 14) reported = 6;
    return n == 15 ? 6 : 0;
}

#define LOG(format, ...) fprintf(stderr, format " on %d, stream %p\n", __VA_ARGS__, comm == &communicator, stream)

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream) {
    LOG("all_reduce %p %p %zu %d %d", in, out, n, type, op);
    return done(n);
}
int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream) {
    LOG("reduce_scatter %p %p %zu %d %d", in, out, n, type, op);
    return done(n);
}
int ncclAllGather(const void *in, void *out, size_t n, int type, void *comm, void *stream) {
    LOG("all_gather %p %p %zu %d", in, out, n, type);
    return done(n);
}
int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *comm, void *stream) {
    LOG("broadcast %p %p %zu %d %d", in, out, n, type, root);
    return done(n);
}
int ncclSend(const void *in, size_t n, int type, int to, void *comm, void *stream) {
    LOG("send %p %zu %d %d", in, n, type, to);
    return done(n);
}
int ncclRecv(void *out, size_t n, int type, int from, void *comm, void *stream) {
    LOG("recv %p %zu %d %d", out, n, type, from);
    return done(n);
}
int ncclGroupStart(void) { fprintf(stderr, "group start\n"); return 0; }
int ncclGroupEnd(void) { fprintf(stderr, "group end\n"); return 0; }
