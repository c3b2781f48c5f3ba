/* The turns of a WAL shard until something rare happens. Contract: interface.Commit; the page: shards/wal/turns.py. What a
 * turn promises: shards/wal/committer.py, whose turn() is the twin of one round here.
 *
 * One call gathers what the rings hold, writes it as a group, publishes the state and the counters, syncs where somebody
 * waits for that, rings, lingers and sleeps, without the interpreter's lock. It changes nothing but the page, the rings,
 * the state's slots, the bells and the file, and returns with everything said that is true: whatever it leaves to its
 * caller (rotation, a failure, pressure, the supervisor's orders) it has not begun.
 */
#define _GNU_SOURCE
#include "checksum.h"
#include "core.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* ipc/ring.py */
#define RING_HEAD 64u
#define RING_SYNC_WANTED 128u
#define RING_WRITE_WANTED 136u
#define RING_SYNC_WISHED 144u
#define RING_WRITTEN 320u
#define RING_SYNCED 384u
#define RING_WINDOW_US 536u
#define RING_WRITE_US 544u
#define RING_SYNC_US 552u
#define RING_BODY 576u
/* ipc/slots.py, ipc/shm.py */
#define SLOTS_AT 64u
#define SLOT_HEAD 24u
#define STATE_FIXED 28u /* ipc/walstate.py */
/* ipc/pressure.py */
#define BOARD_COMMIT_US 88u
/* shards/storage/walfile.py */
#define GROUP_MAGIC 0x31475754u
#define GROUP_SUMMED 32u
#define GROUP_SIZE 40u

#define RINGS_MAX 64u
#define NS_PER_US 1000u
#define NS_PER_S 1000000000u
#define MISSES_MAX 6u /* shards/process/linger.py */

enum why { TICK = 1, MESSAGE, SIGNAL, PRESSURE, ROOM, ENOUGH, WRITE_FAILED, SYNC_FAILED, ASIDE };
enum aside { NONE, UNDER_WAY, ENDED }; /* shards/wal/aside.py */

/* The page, all u64: shards/wal/turns.py draws it. */
typedef struct {
    uint64_t most_ns, misses, pause;
} linger_t;

typedef struct {
    uint64_t written, synced, bell_at, bell_fd; /* bell_fd: UINT64_MAX without a bell */
} inlet_t;

typedef struct {
    uint64_t fd, limit, group_limit, first_lsn, lsn, synced_lsn, run, seed;
    uint64_t last_sync_ns, disk_sync_ns, until_ns, enough_bytes;
    uint64_t state_number, bell_at, bell_fd, channel_fd;
    uint64_t lone_bytes, lone;
    linger_t answered;
    uint64_t groups, bytes, syncs, error; /* of this call */
    uint64_t samples_max, samples;        /* of syncs, behind the inlets */
    uint64_t aside;                       /* of the sync beside, set by its thread */
    inlet_t inlets[];
} page_t;

typedef struct {
    page_t *page;
    uint64_t *samples_ns;
    uint8_t *state, *bells, *board;
    uint64_t slot_size;
    unsigned rings;
    uint8_t *ring[RINGS_MAX];
    uint64_t capacity[RINGS_MAX];
} loop_t;

static inline uint64_t load(const uint8_t *base, uint64_t at)
{
    return __atomic_load_n((const uint64_t *)(base + at), __ATOMIC_ACQUIRE);
}

static inline void store(uint8_t *base, uint64_t at, uint64_t value)
{
    __atomic_store_n((uint64_t *)(base + at), value, __ATOMIC_RELEASE);
}

static inline uint64_t fenced_load(const uint8_t *base, uint64_t at)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return load(base, at);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t us_of(uint64_t ns) { return (ns + NS_PER_US / 2) / NS_PER_US; }

/* Doorbell.ring_and_yield */
static void ring_bell(const loop_t *l, const inlet_t *inlet)
{
    if (fenced_load(l->bells, inlet->bell_at)) {
        store(l->bells, inlet->bell_at, 0);
        uint64_t one = 1;
        ssize_t done = write((int)inlet->bell_fd, &one, sizeof one);
        (void)done; /* full: it is rung already */
    }
    sched_yield();
}

/* Slots.write(pack_state(…)) */
static void publish_state(const loop_t *l)
{
    page_t *p = l->page;
    uint64_t number = ++p->state_number;
    uint32_t length = STATE_FIXED + 8 * l->rings;
    uint8_t slot[SLOT_HEAD + STATE_FIXED + 8 * RINGS_MAX], summed[12 + STATE_FIXED + 8 * RINGS_MAX];
    uint8_t *payload = summed + 12;
    put64(summed, number);
    put32(summed + 8, length);
    put64(payload, p->lsn);
    put64(payload + 8, p->first_lsn);
    put64(payload + 16, p->synced_lsn);
    put32(payload + 24, l->rings);
    for (unsigned i = 0; i < l->rings; i++)
        put64(payload + STATE_FIXED + 8 * i, p->inlets[i].written);
    put64(slot, number);
    put32(slot + 8, length);
    put32(slot + 12, 0);
    put64(slot + 16, XXH3_64bits(summed, 12 + length));
    memcpy(slot + SLOT_HEAD, payload, length);
    memcpy(l->state + SLOTS_AT + (number % 2) * l->slot_size, slot, SLOT_HEAD + length);
}

/* ---- one turn ---- */

typedef struct {
    uint64_t start[RINGS_MAX], end[RINGS_MAX]; /* equal: nothing of that ring */
    uint64_t length;
} group_t;

/* False: a ring claims more than it can hold. */
static bool gather(const loop_t *l, group_t *g)
{
    uint64_t room = l->page->group_limit;
    g->length = 0;
    for (unsigned i = 0; i < l->rings; i++) {
        uint64_t written = l->page->inlets[i].written, head = load(l->ring[i], RING_HEAD);
        uint64_t size = head - written;
        g->start[i] = g->end[i] = written;
        if (size > l->capacity[i])
            return false;
        if (size && (size <= room || !g->length)) {
            g->end[i] = head;
            g->length += size;
            room = size < room ? room - size : 0;
        }
    }
    return true;
}

static int write_all(int fd, struct iovec *parts, int count, uint64_t offset)
{
    while (count) {
        ssize_t done = pwritev(fd, parts, count, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno;
        if (done == 0)
            return EIO; /* the disk accepted no byte */
        offset += (uint64_t)done;
        while (count && (size_t)done >= parts->iov_len) {
            done -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count) {
            parts->iov_base = (uint8_t *)parts->iov_base + done;
            parts->iov_len -= (size_t)done;
        }
    }
    return 0;
}

static int write_group(const loop_t *l, const group_t *g)
{
    const page_t *p = l->page;
    uint8_t header[GROUP_SIZE];
    put32(header, GROUP_MAGIC);
    put32(header + 4, (uint32_t)g->length);
    put64(header + 8, p->lsn);
    put64(header + 16, p->synced_lsn);
    put32(header + 24, (uint32_t)p->run);
    put32(header + 28, 0);
    put64(header + GROUP_SUMMED, XXH3_64bits_withSeed(header, GROUP_SUMMED, p->seed));
    struct iovec parts[1 + 2 * RINGS_MAX] = {{header, GROUP_SIZE}};
    int count = 1;
    for (unsigned i = 0; i < l->rings; i++) {
        uint64_t size = g->end[i] - g->start[i], at = g->start[i] % l->capacity[i];
        uint64_t first = size < l->capacity[i] - at ? size : l->capacity[i] - at;
        if (first)
            parts[count++] = (struct iovec){l->ring[i] + RING_BODY + at, first};
        if (size - first)
            parts[count++] = (struct iovec){l->ring[i] + RING_BODY, size - first};
    }
    return write_all((int)p->fd, parts, count, p->lsn - p->first_lsn);
}

static void tell_written(const loop_t *l, const group_t *g, uint64_t took_us)
{
    for (unsigned i = 0; i < l->rings; i++) {
        if (g->start[i] == g->end[i])
            continue;
        const inlet_t *inlet = &l->page->inlets[i];
        uint8_t *ring = l->ring[i];
        store(ring, RING_WINDOW_US, 0);
        store(ring, RING_WRITE_US, took_us);
        store(ring, RING_WRITTEN, g->end[i]);
        if (inlet->bell_fd != UINT64_MAX && fenced_load(ring, RING_WRITE_WANTED) > g->start[i])
            ring_bell(l, inlet);
    }
}

static bool any_asks(const loop_t *l, uint64_t word)
{
    for (unsigned i = 0; i < l->rings; i++) {
        const inlet_t *inlet = &l->page->inlets[i];
        if (inlet->written > inlet->synced && load(l->ring[i], word) > inlet->synced)
            return true;
    }
    return false;
}

static bool sync_awaited(const loop_t *l) { return any_asks(l, RING_SYNC_WANTED); }

static enum aside aside_of(const page_t *p) { return (enum aside)__atomic_load_n(&p->aside, __ATOMIC_ACQUIRE); }

/* Has Python to begin or to end a sync beside the turns? */
static bool beside_due(const loop_t *l, uint64_t now)
{
    const page_t *p = l->page;
    enum aside aside = aside_of(p);
    if (aside != NONE)
        return aside == ENDED;
    bool dirty = p->lsn > p->synced_lsn;
    return dirty && (now >= p->last_sync_ns + p->disk_sync_ns || any_asks(l, RING_SYNC_WISHED));
}

static int sync_file(const loop_t *l)
{
    page_t *p = l->page;
    uint64_t began = now_ns();
    while (fdatasync((int)p->fd) < 0)
        if (errno != EINTR)
            return errno;
    p->last_sync_ns = now_ns();
    p->synced_lsn = p->lsn;
    uint64_t took = p->last_sync_ns - began;
    for (unsigned i = 0; i < l->rings; i++)
        store(l->ring[i], RING_SYNC_US, us_of(took));
    for (unsigned i = 0; i < l->rings; i++) {
        inlet_t *inlet = &p->inlets[i];
        if (inlet->synced == inlet->written)
            continue;
        uint64_t before = inlet->synced;
        inlet->synced = inlet->written;
        store(l->ring[i], RING_SYNCED, inlet->synced);
        bool waited_for = load(l->ring[i], RING_SYNC_WANTED) > before || load(l->ring[i], RING_SYNC_WISHED) > before;
        if (inlet->bell_fd != UINT64_MAX && waited_for)
            ring_bell(l, inlet);
    }
    l->samples_ns[p->samples++] = took;
    p->syncs++;
    return 0;
}

static enum why failed(page_t *p, int error, enum why why)
{
    p->error = (uint64_t)error;
    return why;
}

/* Commits what the rings hold. 0: go on, *busy says whether there was anything. */
static enum why turn(const loop_t *l, bool *busy)
{
    page_t *p = l->page;
    group_t g;
    if (!gather(l, &g))
        return failed(p, EIO, WRITE_FAILED);
    if (g.length) {
        uint64_t need = GROUP_SIZE + g.length, began = now_ns();
        if (p->lsn - p->first_lsn + need > p->limit)
            return ROOM;
        int error = write_group(l, &g);
        if (error)
            return failed(p, error, WRITE_FAILED);
        p->lsn += need;
        p->groups++;
        p->bytes += need;
        if (need <= p->lone_bytes)
            p->lone = 1;
        for (unsigned i = 0; i < l->rings; i++)
            p->inlets[i].written = g.end[i];
        /* State before counters: a successor never goes back behind what a producer was told. */
        publish_state(l);
        tell_written(l, &g, us_of(now_ns() - began));
    }
    *busy = g.length > 0;
    bool awaited = sync_awaited(l);
    /* Two syncs at once: of a failure only one would hear. */
    if (awaited ? aside_of(p) != NONE : beside_due(l, now_ns()))
        return ASIDE;
    if (awaited) {
        int error = sync_file(l);
        if (error)
            return failed(p, error, SYNC_FAILED);
        *busy = true;
    }
    return 0;
}

/* ---- between turns ---- */

static bool pending(const loop_t *l)
{
    for (unsigned i = 0; i < l->rings; i++)
        if (load(l->ring[i], RING_HEAD) > l->page->inlets[i].written)
            return true;
    return sync_awaited(l) || beside_due(l, now_ns());
}

/* Linger.worthwhile() and Linger.until(pending) */
static bool linger(const loop_t *l, linger_t *wait)
{
    if (wait->pause) {
        wait->pause--;
        return false;
    }
    if (!wait->most_ns)
        return false;
    uint64_t end = now_ns() + wait->most_ns;
    while (!pending(l)) {
        if (now_ns() >= end) {
            wait->misses = wait->misses < MISSES_MAX ? wait->misses + 1 : MISSES_MAX;
            wait->pause = 1ull << wait->misses;
            return false;
        }
        sched_yield(); /* the one that is waited for may have been put on this very core */
    }
    wait->misses = 0;
    return true;
}

static bool something_comes(const loop_t *l)
{
    page_t *p = l->page;
    bool lone = p->lone;
    p->lone = 0;
    return lone && linger(l, &p->answered);
}

/* Doorbell.awake(), announce(); then a last look, and sleep. */
static enum why rest(const loop_t *l)
{
    page_t *p = l->page;
    uint64_t rings;
    store(l->bells, p->bell_at, 0);
    ssize_t got = read((int)p->bell_fd, &rings, sizeof rings);
    (void)got; /* nothing there: nobody rang */
    store(l->bells, p->bell_at, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (pending(l))
        return 0;
    uint64_t now = now_ns(), until = p->until_ns;
    if (aside_of(p) == NONE && p->lsn > p->synced_lsn && p->last_sync_ns + p->disk_sync_ns < until)
        until = p->last_sync_ns + p->disk_sync_ns;
    uint64_t left = until > now ? until - now : 0;
    struct timespec wait = {(time_t)(left / NS_PER_S), (long)(left % NS_PER_S)};
    struct pollfd fds[] = {{(int)p->bell_fd, POLLIN, 0}, {(int)p->channel_fd, POLLIN, 0}};
    if (ppoll(fds, 2, &wait, NULL) < 0)
        return SIGNAL;
    return fds[1].revents ? MESSAGE : 0;
}

static enum why commit(const loop_t *l)
{
    page_t *p = l->page;
    for (;;) {
        if (now_ns() >= p->until_ns)
            return TICK;
        if (load(l->board, BOARD_COMMIT_US))
            return PRESSURE;
        bool busy;
        enum why why = turn(l, &busy);
        if (why)
            return why;
        if (p->bytes >= p->enough_bytes || p->samples == p->samples_max)
            return ENOUGH;
        if (busy || something_comes(l))
            continue;
        if ((why = rest(l)))
            return why;
    }
}

/* ---- arguments ---- */

typedef struct {
    Py_buffer page, state, bells, board, rings[RINGS_MAX];
    unsigned taken, opened;
} views_t;

static bool take_views(PyObject *const *args, views_t *v)
{
    Py_buffer *const fixed[] = {&v->page, &v->state, &v->bells, &v->board};
    for (; v->taken < 4; v->taken++)
        if (!take_buffer(args[v->taken], v->taken < 3, fixed[v->taken]))
            return false;
    if (!PyTuple_Check(args[4]) || PyTuple_GET_SIZE(args[4]) > (Py_ssize_t)RINGS_MAX) {
        PyErr_Format(PyExc_TypeError, "commit() takes a tuple of at most %u rings", RINGS_MAX);
        return false;
    }
    for (; v->opened < (unsigned)PyTuple_GET_SIZE(args[4]); v->opened++)
        if (!take_buffer(PyTuple_GET_ITEM(args[4], v->opened), true, &v->rings[v->opened]))
            return false;
    return true;
}

static void release_views(views_t *v)
{
    Py_buffer *const fixed[] = {&v->page, &v->state, &v->bells, &v->board};
    for (unsigned i = 0; i < v->taken; i++)
        PyBuffer_Release(fixed[i]);
    for (unsigned i = 0; i < v->opened; i++)
        PyBuffer_Release(&v->rings[i]);
}

/* Does everything the loop will touch lie inside what it was given? */
static bool lay_out(loop_t *l, const views_t *v)
{
    page_t *p = l->page = v->page.buf;
    l->state = v->state.buf;
    l->bells = v->bells.buf;
    l->board = v->board.buf;
    l->rings = v->opened;
    uint64_t fixed = sizeof *p + l->rings * sizeof *p->inlets, size = (uint64_t)v->page.len;
    bool good = size >= fixed && (uintptr_t)p % 8 == 0 && p->samples_max && p->samples_max <= (size - fixed) / 8 &&
                v->board.len >= (Py_ssize_t)BOARD_COMMIT_US + 8 && v->state.len > (Py_ssize_t)SLOTS_AT &&
                p->bell_at + 8 <= (uint64_t)v->bells.len;
    if (good) {
        l->samples_ns = (uint64_t *)(p->inlets + l->rings);
        l->slot_size = ((uint64_t)v->state.len - SLOTS_AT) / 2;
        good = SLOT_HEAD + STATE_FIXED + 8 * l->rings <= l->slot_size;
    }
    for (unsigned i = 0; good && i < l->rings; i++) {
        l->ring[i] = v->rings[i].buf;
        good = v->rings[i].len > (Py_ssize_t)RING_BODY && p->inlets[i].bell_at + 8 <= (uint64_t)v->bells.len;
        l->capacity[i] = good ? (uint64_t)v->rings[i].len - RING_BODY : 0;
    }
    if (!good)
        refuse("invalid_request", "the page and its regions do not fit together");
    return good;
}

/* commit(page, state, bells, board, rings) -> why it returns */
CORE_FUNCTION(core_commit)
{
    (void)module;
    loop_t loop = {0};
    views_t views = {0};
    PyObject *answer = NULL;
    if (!take_count("commit", nargs, 5))
        return NULL;
    if (take_views(args, &views) && lay_out(&loop, &views)) {
        loop.page->groups = loop.page->bytes = loop.page->syncs = loop.page->error = loop.page->samples = 0;
        enum why why;
        Py_BEGIN_ALLOW_THREADS
        why = commit(&loop);
        Py_END_ALLOW_THREADS
        answer = PyLong_FromLong(why);
    }
    release_views(&views);
    return answer;
}
