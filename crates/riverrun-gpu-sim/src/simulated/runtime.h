// The environment of CUDA C++ on the simulated device. Every thread of a cube is a fiber; one runs at a time, until it
// waits for others: at a barrier, in an instruction of the whole plane, or when it polls memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <sys/mman.h>
#include <vector>

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define __cluster_dims__(x, y, z)

namespace sim {

constexpr size_t STACK = 256 << 10;
// As much as a cube may have.
constexpr size_t SHARED = 228 << 10;
// Cubes at once, as on a device with so many multiprocessors.
constexpr unsigned RESIDENT = 132;

struct Dim {
    unsigned x, y, z;
};

struct Plane {
    unsigned arrived = 0, round = 0;
    // The operands of its threads in an instruction, of this round and of the one before.
    uint32_t given[2][32][8];
    // Operands in shared memory that its threads have widened together, likewise.
    std::vector<float> widened[2];
};

// Threads of a cluster's cubes at its barrier.
struct Cluster {
    unsigned arrived = 0, round = 0;
};

struct Cube {
    Dim id;
    unsigned number = 0;
    unsigned arrived = 0, round = 0, left = 0;
    std::vector<char> shared;
    std::vector<Plane> planes;
};

// A copy to shared memory that need not be there before it is waited for; zeros after its bytes.
struct Copy {
    char *to;
    const char *from;
    unsigned bytes, size;
};

struct Thread {
    void *stack = nullptr, *at = nullptr;
    Dim id;
    Cube *cube = nullptr;
    unsigned number = 0;
    // The round of the cluster's barrier that it has arrived at.
    unsigned round = 0;
    bool done = true;
    // Its copies under way, by groups, and those that are in no group yet.
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> copies;
};

static Thread *thread;
static void *scheduler;
static Dim cube_count, cube_dim;
static unsigned threads_a_cube, cubes_a_cluster;
// By the number of a cube, where it runs.
static std::vector<Cube *> placed;
static std::vector<Cluster> clusters;
static void (*entry)();
// The clock. A turn of the scheduler gives every thread of the resident cubes a piece of its work.
static uint64_t nanoseconds;
static uint64_t now() { return nanoseconds; }
// What a turn takes: 0.1 ms; 10 ms while a cube is held back.
static const uint64_t TURN = 100000, HELD_TURN = 10000000;

// Saves what a call keeps, and goes on where another stack was left.
extern "C" void sim_switch(void **from, void *to);
asm(R"(
.text
.type sim_switch, @function
sim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

static void yield() { sim_switch(&thread->at, scheduler); }

static void start() {
    entry();
    thread->done = true;
    yield();
}

static void begin(Thread &of, Cube *cube, unsigned number) {
    if (!of.stack)
        of.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    auto top = (void **)((char *)of.stack + STACK - 64);
    // A stack as a call leaves it: the return address 8 bytes past a multiple of 16.
    *--top = nullptr;
    *--top = (void *)start;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    of.at = top;
    of.cube = cube;
    of.number = number;
    of.id = {number % cube_dim.x, number / cube_dim.x % cube_dim.y, number / (cube_dim.x * cube_dim.y)};
    of.done = false;
    of.groups.clear();
    of.copies.clear();
}

static void meet(unsigned &arrived, unsigned &round, unsigned all) {
    unsigned now = round;
    if (++arrived == all) {
        arrived = 0;
        round++;
        return;
    }
    while (round == now)
        yield();
}

static Plane &plane() { return thread->cube->planes[thread->number / 32]; }
static unsigned lane() { return thread->number % 32; }
// The last plane of a cube may have fewer threads.
static void meet_plane() {
    Plane &all = plane();
    meet(all.arrived, all.round, std::min(32u, threads_a_cube - thread->number / 32 * 32));
}

// The cube `held` does not run before `until` on the clock.
static void run(Dim count, Dim dim, unsigned cluster, void (*kernel)(), unsigned held, uint64_t until) {
    cubes_a_cluster = cluster;
    cube_count = count;
    cube_dim = dim;
    entry = kernel;
    threads_a_cube = dim.x * dim.y * dim.z;
    unsigned all = count.x * count.y * count.z, resident = std::min(all, RESIDENT), started = 0, finished = 0;
    placed.assign(all, nullptr);
    clusters.assign(all / cluster, Cluster());
    std::vector<Cube> cubes(resident);
    std::vector<Thread> threads(resident * threads_a_cube);
    auto next = [&](unsigned place) {
        Cube &cube = cubes[place];
        cube.id = {started % count.x, started / count.x % count.y, started / (count.x * count.y)};
        cube.number = started;
        placed[started] = &cube;
        cube.shared.assign(SHARED + 128, (char)0xff);
        cube.planes.assign((threads_a_cube + 31) / 32, Plane());
        cube.arrived = cube.round = 0;
        cube.left = threads_a_cube;
        for (unsigned i = 0; i < threads_a_cube; i++)
            begin(threads[place * threads_a_cube + i], &cube, i);
        started++;
    };
    for (unsigned place = 0; place < resident; place++)
        next(place);
    // Every turn begins with another thread.
    for (unsigned turn = 1; finished < all; turn = turn * 1664525 + 1013904223) {
        bool holding = held < resident && now() < until;
        nanoseconds += holding ? HELD_TURN : TURN;
        for (size_t i = 0; i < threads.size(); i++) {
            thread = &threads[(i + turn) % threads.size()];
            if (thread->done || (holding && thread->cube == &cubes[held]))
                continue;
            sim_switch(&scheduler, thread->at);
            if (thread->done && --thread->cube->left == 0) {
                finished++;
                if (started < all)
                    next(thread->cube - cubes.data());
            }
        }
    }
    for (Thread &of : threads)
        if (of.stack)
            munmap(of.stack, STACK);
}

static char *shared(Cube *cube) { return (char *)(((uintptr_t)cube->shared.data() + 127) & ~(uintptr_t)127); }
static char *shared() { return shared(thread->cube); }

// Where the low half of an address of shared memory is.
static char *shared_at(uint32_t at) {
    char *start = shared();
    return start + (uint32_t)(at - (uint32_t)(uintptr_t)start);
}
static void copy(uint32_t at, uint64_t from, uint32_t bytes, unsigned size) {
    thread->copies.push_back({shared_at(at), (const char *)from, bytes, size});
}
static void end_group() {
    thread->groups.push_back(thread->copies);
    thread->copies.clear();
}
static void wait_groups(size_t left) {
    auto &groups = thread->groups;
    while (groups.size() > left) {
        for (const Copy &copy : groups.front()) {
            memset(copy.to, 0, copy.size);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        groups.erase(groups.begin());
    }
}
static void put(uint32_t at, const uint32_t (&words)[4]) { memcpy(shared_at(at), words, 16); }

static Cluster &cluster() { return clusters[thread->cube->number / cubes_a_cluster]; }
static void arrive_cluster() {
    Cluster &all = cluster();
    thread->round = all.round;
    if (++all.arrived == threads_a_cube * cubes_a_cluster) {
        all.arrived = 0;
        all.round++;
    }
}
static void wait_cluster() {
    while (cluster().round == thread->round)
        yield();
}
// The same place in the shared memory of another cube of the cluster, which must be running.
static uint64_t neighbour(uint64_t at, uint32_t rank) {
    Cube *own = thread->cube, *other = placed[own->number / cubes_a_cluster * cubes_a_cluster + rank];
    // Before they have met, it may not have begun; the address is that of none.
    return other ? at - (uint64_t)shared(own) + (uint64_t)shared(other) : 0;
}

static float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}
static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x)
        return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
__attribute__((target("f16c"))) static float from_f16(uint16_t x) { return _cvtsh_ss(x); }
__attribute__((target("f16c"))) static uint16_t to_f16(float x) { return x != x ? 0x7fff : _cvtss_sh(x, 0); }

static float larger_or_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }

// Two numbers to a word, the first above.
static uint32_t pack_bf16(float high, float low) { return (uint32_t)to_bf16(high) << 16 | to_bf16(low); }
static uint32_t pack_f16(float high, float low) { return (uint32_t)to_f16(high) << 16 | to_f16(low); }

template <class T> static T as(uint32_t bits) {
    T x;
    memcpy(&x, &bits, 4);
    return x;
}

// Sixteen products, or eight, and their sum with `c`.
template <int K> __attribute__((target("fma"))) static float dot(const float *a, const float *b, float c) {
    __m256d sum = _mm256_setr_pd(c, 0.0, 0.0, 0.0);
    for (int k = 0; k < K; k += 4)
        sum = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + k)), _mm256_cvtps_pd(_mm_loadu_ps(b + k)), sum);
    __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return (float)(_mm_cvtsd_f64(pair) + _mm_cvtsd_f64(_mm_unpackhi_pd(pair, pair)));
}

// The numbers of a word that an instruction multiplies.
template <float (*WIDEN)(uint16_t), int PER_WORD> static void widen(float *to, uint32_t word) {
    if (PER_WORD == 1)
        *to = as<float>(word & 0xffffe000);
    for (int part = 0; part < PER_WORD && PER_WORD > 1; part++)
        to[part] = WIDEN(word >> 16 * part);
}

// m16n8k16 of bf16 or f16, m16n8k8 of TF32: of each thread its part of a row-major A, of B and of C.
template <float (*WIDEN)(uint16_t), int PER_WORD>
static void mma(float *d, const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4]) {
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    memcpy(given[lane()], a, 16);
    memcpy(given[lane()] + 4, b, 8);
    meet_plane();
    constexpr int K = 8 * PER_WORD;
    float left[2][K], right[2][K];
    for (int i = 0; i < 2; i++) {
        int row = lane() / 4 * 4, column = (lane() % 4 * 2 + i) * 4;
        for (int word = 0; word < 8; word++) {
            widen<WIDEN, PER_WORD>(left[i] + word * PER_WORD, given[row + word % 4][i + 2 * (word / 4)]);
            widen<WIDEN, PER_WORD>(right[i] + word * PER_WORD, given[column + word % 4][4 + word / 4]);
        }
    }
    float sums[4];
    for (int i = 0; i < 4; i++)
        sums[i] = dot<K>(left[i / 2], right[i % 2], c[i]);
    memcpy(d, sums, 16);
}

// A number of 16 bits of a tile for `wgmma`: rows of 128 bytes, whose vectors of 16 bytes are permuted, 64 numbers; further ones in the
// next panel.
static uint16_t number_of(uint64_t tile, int row, int number) {
    if (tile >> 62 != 1)
        abort();
    uint32_t start = (tile & 0x3fff) << 4, panel = (tile >> 16 & 0x3fff) << 4, groups = (tile >> 32 & 0x3fff) << 4;
    uint32_t base = (uint32_t)(uintptr_t)shared();
    uint32_t at = start + number / 64 * panel + row / 8 * groups + row % 8 * 128 + number % 64 * 2;
    at ^= (at >> 7 & 7) << 4;
    uint16_t found;
    memcpy(&found, shared_at(base + (at - base & 0x3ffff)), 2);
    return found;
}

struct Words {
    uint32_t words[4];
};

// The thread's part of the plane's 16 rows of an operand A in shared memory.
static Words rows_of(uint64_t tile) {
    Words found;
    for (int i = 0; i < 4; i++) {
        int row = thread->number / 32 % 4 * 16 + lane() / 4 + i % 2 * 8, k = lane() % 4 * 2 + i / 2 * 8;
        found.words[i] = number_of(tile, row, k) | (uint32_t)number_of(tile, row, k + 1) << 16;
    }
    return found;
}

// m64n..k16 of bf16 or f16, a plane's 16 rows: of each thread its part of A and of the sums. `rows`: a row of the tile is a row of B,
// else a column.
template <float (*WIDEN)(uint16_t), int COLUMNS>
static void wgmma(float *const (&sums)[COLUMNS / 2], Words a, uint64_t tile, bool adds, bool rows) {
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    auto &right = all.widened[all.round & 1];
    memcpy(given[lane()], a.words, 16);
    right.resize(COLUMNS * 16);
    for (int i = lane(); i < COLUMNS * 16; i += 32) {
        int column = i / 16, k = i % 16;
        right[i] = WIDEN(rows ? number_of(tile, k, column) : number_of(tile, column, k));
    }
    meet_plane();
    float left[2][16];
    for (int i = 0; i < 2; i++)
        for (int word = 0; word < 8; word++)
            widen<WIDEN, 2>(left[i] + word * 2, given[lane() / 4 * 4 + word % 4][i + word / 4 * 2]);
    for (int n = 0; n < COLUMNS / 2; n++) {
        int i = n / 2 % 2, column = n / 4 * 8 + lane() % 4 * 2 + n % 2;
        *sums[n] = dot<16>(left[i], &right[column * 16], adds ? *sums[n] : 0.0f);
    }
}

// Of four blocks of 8 rows by 8 numbers of 16 bits, the thread's pair of neighbours of a row, or of a column.
template <bool TRANSPOSED> static void blocks(uint32_t *words, uint32_t at) {
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    given[lane()][0] = at;
    meet_plane();
    for (unsigned i = 0; i < 4; i++) {
        auto row = [&](unsigned n) { return shared_at(given[i * 8 + n][0]); };
        unsigned line = lane() / 4, first = lane() % 4 * 2;
        uint16_t pair[2];
        for (unsigned n = 0; n < 2; n++)
            memcpy(&pair[n], TRANSPOSED ? row(first + n) + line * 2 : row(line) + (first + n) * 2, 2);
        memcpy(&words[i], pair, 4);
    }
}

// The same, written.
template <bool TRANSPOSED> static void put_blocks(uint32_t at, const uint32_t (&words)[4]) {
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    given[lane()][0] = at;
    meet_plane();
    for (unsigned i = 0; i < 4; i++) {
        auto row = [&](unsigned n) { return shared_at(given[i * 8 + n][0]); };
        unsigned line = lane() / 4, first = lane() % 4 * 2;
        uint16_t pair[2];
        memcpy(pair, &words[i], 4);
        for (unsigned n = 0; n < 2; n++)
            memcpy(TRANSPOSED ? row(first + n) + line * 2 : row(line) + (first + n) * 2, &pair[n], 2);
    }
}

// A block of 8 rows by 8 numbers of 16 bits, of which each thread has two neighbours of a row, with rows and columns exchanged.
static uint32_t turned(uint32_t word) {
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    given[lane()][0] = word;
    meet_plane();
    uint32_t pair = 0;
    for (unsigned n = 0; n < 2; n++) {
        unsigned row = lane() % 4 * 2 + n, column = lane() / 4;
        uint32_t found = given[row * 4 + column / 2][0] >> column % 2 * 16;
        pair |= (found & 0xffff) << n * 16;
    }
    return pair;
}

template <class T> static T shuffle(T x, unsigned from) {
    static_assert(sizeof(T) <= 8, "a word or two");
    Plane &all = plane();
    auto &given = all.given[all.round & 1];
    memcpy(given[lane()], &x, sizeof(T));
    meet_plane();
    memcpy(&x, given[from < 32 ? from : lane()], sizeof(T));
    return x;
}

// What other cubes may be about to write.
static void poll() { yield(); }
template <class T> static void load_4(T &words, uint64_t at) {
    memcpy(&words, (void *)at, 16);
    yield();
}
static uint32_t load(uint64_t at) {
    yield();
    uint32_t word;
    memcpy(&word, (void *)at, 4);
    return word;
}
static void store(uint64_t at, uint32_t word) { memcpy((void *)at, &word, 4); }
static uint64_t load_long(uint64_t at) {
    yield();
    uint64_t word;
    memcpy(&word, (void *)at, 8);
    return word;
}
static void store_long(uint64_t at, uint64_t word) { memcpy((void *)at, &word, 8); }
static uint32_t replace(uint64_t at, uint32_t expected, uint32_t word) {
    uint32_t before;
    memcpy(&before, (void *)at, 4);
    if (before == expected)
        store(at, word);
    return before;
}
static uint32_t add(uint64_t at, uint32_t x) {
    uint32_t before;
    memcpy(&before, (void *)at, 4);
    store(at, before + x);
    return before;
}

} // namespace sim

#define threadIdx (sim::thread->id)
#define blockIdx (sim::thread->cube->id)
#define gridDim (sim::cube_count)
#define blockDim (sim::cube_dim)

static void __syncthreads() { sim::meet(sim::thread->cube->arrived, sim::thread->cube->round, sim::threads_a_cube); }
static void __syncwarp() { sim::meet_plane(); }
// Planes are whole wherever the kernels shuffle.
static unsigned __activemask() { return ~0u; }
template <class T> static T __shfl_sync(unsigned, T x, unsigned from) { return sim::shuffle(x, from); }
template <class T> static T __shfl_xor_sync(unsigned, T x, unsigned by) { return sim::shuffle(x, sim::lane() ^ by); }
template <class T> static T __shfl_up_sync(unsigned, T x, unsigned by) { return sim::shuffle(x, sim::lane() - by); }
template <class T> static T __shfl_down_sync(unsigned, T x, unsigned by) { return sim::shuffle(x, sim::lane() + by); }
template <class T> static T atomicExch(T *place, T x) {
    std::swap(*place, x);
    return x;
}
template <class T> static T atomicAdd(T *place, T x) {
    T before = *place;
    *place += x;
    return before;
}
template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }
static float min(float a, float b) { return fminf(a, b); }
static float max(float a, float b) { return fmaxf(a, b); }
static float fma(float a, float b, float c) { return fmaf(a, b, c); }
static float fabs(float x) { return fabsf(x); }
static float rsqrt(float x) { return 1.0f / sqrtf(x); }

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits(sim::to_bf16(x)) {}
    operator float() const { return sim::from_bf16(bits); }
};
struct __half {
    uint16_t bits;
    __half() = default;
    __half(float x) : bits(sim::to_f16(x)) {}
    operator float() const { return sim::from_f16(bits); }
};
