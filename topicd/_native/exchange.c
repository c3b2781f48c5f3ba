/* A request and the beginning of its answer, in one call without the GIL. Contract: interface.Exchange.
 *
 * Between the two it waits in poll() and not in recv(): whoever reads the request frees its bytes, and the kernel then
 * wakes a writer that might wait for room. A sleeper in recv() is taken for one; a sleeper in poll() says what it waits
 * for and sleeps on.
 */
#include "core.h"
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

typedef struct {
    long fd, timeout_ms;
    const uint8_t *message;
    Py_ssize_t size;
    Py_buffer window;
} talk_t;

/* The bytes that came; -1 with an exception set. */
static Py_ssize_t talk(const talk_t *t)
{
    Py_ssize_t sent = 0, found = -1;
    int error = 0;
    do { /* again after a signal whose handler raised nothing */
        Py_BEGIN_ALLOW_THREADS
        error = t->fd < 0 ? EBADF : 0; /* poll() would pass over it */
        while (!error && sent < t->size) {
            ssize_t took = send((int)t->fd, t->message + sent, (size_t)(t->size - sent), MSG_NOSIGNAL);
            if (took < 0)
                error = errno;
            else
                sent += took;
        }
        if (!error) {
            struct pollfd wanted = {.fd = (int)t->fd, .events = POLLIN};
            int ready = poll(&wanted, 1, (int)t->timeout_ms);
            if (ready < 0)
                error = errno;
            else if (!ready)
                error = EAGAIN;
        }
        if (!error) {
            found = recv((int)t->fd, t->window.buf, (size_t)t->window.len, 0);
            if (found < 0)
                error = errno;
        }
        Py_END_ALLOW_THREADS
    } while (error == EINTR && !PyErr_CheckSignals());
    if (PyErr_Occurred())
        return -1;
    if (!error)
        return found;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* exchange(descriptor, message, window, timeout_ms) -> bytes received */
CORE_FUNCTION(core_exchange)
{
    (void)module;
    if (!take_count("exchange", nargs, 4))
        return NULL;
    talk_t t = {.fd = PyLong_AsLong(args[0]), .timeout_ms = PyLong_AsLong(args[3])};
    if (PyErr_Occurred())
        return NULL;
    Py_buffer message;
    if (!take_buffer(args[1], false, &message))
        return NULL;
    Py_ssize_t found = -1;
    if (take_buffer(args[2], true, &t.window)) {
        t.message = message.buf;
        t.size = message.len;
        found = talk(&t);
        PyBuffer_Release(&t.window);
    }
    PyBuffer_Release(&message);
    return found < 0 ? NULL : PyLong_FromSsize_t(found);
}

#define HEADER_SIZE 10u /* u32 length, u8 op, u8 flags, u32 request id */
#define REQUEST_ID_AT 6u
#define CLAIM_SIZE 21u /* u64 topic_id, u32 max, u32 lease_ms, u32 wait_ms, u8 node_len */
#define LEASED_SIZE 16u /* u64 seq, u64 lease */
#define REQUEST_LEAST (HEADER_SIZE + CLAIM_SIZE + 1u + LEASED_SIZE)
#define REQUEST_MOST (HEADER_SIZE + CLAIM_SIZE + MAX_NODE + LEASED_SIZE)
#define OP_CLAIMED 0xD0u
#define FLAG_DONE 64u
#define CLAIMED_AT HEADER_SIZE       /* u64 topic_id, u64 ready, u32 count */
#define ENDED_AT (CLAIMED_AT + 20u)  /* u32 acked, u32 skipped */
#define JOB_AT (ENDED_AT + 8u)       /* u64 seq, u64 lease, u64 deadline, u32 deliveries */
#define FRAME_AT (JOB_AT + 28u)

static PyObject *part(bool there, const uint8_t *p, uint32_t size)
{
    return there ? PyBytes_FromStringAndSize((const char *)p, size) : Py_NewRef(Py_None);
}

/* Is this one whole answer that says: that one is done, here is another? */
static bool is_next_job(const uint8_t *p, Py_ssize_t size, uint32_t request_id, frame_t *f, body_t *b)
{
    return size > (Py_ssize_t)FRAME_AT && (uint64_t)get32(p) + LEN_FIELD == (uint64_t)size && p[4] == OP_CLAIMED &&
           p[5] == FLAG_DONE && get32(p + REQUEST_ID_AT) == request_id && get32(p + CLAIMED_AT + 16) == 1 &&
           get32(p + ENDED_AT) == 1 && get32(p + ENDED_AT + 4) == 0 &&
           frame_parse(p + FRAME_AT, (uint64_t)size - FRAME_AT, f) == FRAME_OK &&
           f->size == (uint64_t)size - FRAME_AT && f->type == TYPE_APPEND && frame_body(f, b);
}

/* (ready, seq, lease, deadline, deliveries, ts, node, tag, meta, data) */
static PyObject *next_job(const uint8_t *p, const frame_t *f, const body_t *b)
{
    typedef unsigned long long ull;
    const uint8_t *job = p + JOB_AT;
    return Py_BuildValue("(KKKKIKNNNN)", (ull)get64(p + CLAIMED_AT + 8), (ull)get64(job), (ull)get64(job + 8),
                         (ull)get64(job + 16), (unsigned)get32(job + 24), (ull)f->ts,
                         part(f->flags & FLAG_NODE, frame_node(f), f->node_len),
                         part(f->flags & FLAG_TAG, frame_tag(f), f->tag_len),
                         part(b->meta != NULL, b->meta, b->meta_len), part(true, b->payload, b->payload_len));
}

/* claim_next(descriptor, request, request_id, seq, lease, window, timeout_ms) -> bytes received, or the next job */
CORE_FUNCTION(core_claim_next)
{
    (void)module;
    if (!take_count("claim_next", nargs, 7))
        return NULL;
    talk_t t = {.fd = PyLong_AsLong(args[0]), .timeout_ms = PyLong_AsLong(args[6])};
    uint64_t request_id, seq, lease;
    if (PyErr_Occurred() || !take_u64(args[2], "request_id", &request_id) || !take_u64(args[3], "seq", &seq) ||
        !take_u64(args[4], "lease", &lease))
        return NULL;
    Py_buffer request;
    if (!take_buffer(args[1], false, &request))
        return NULL;
    uint8_t message[REQUEST_MOST];
    t.message = message;
    t.size = request.len;
    bool fits = t.size >= (Py_ssize_t)REQUEST_LEAST && t.size <= (Py_ssize_t)REQUEST_MOST && request_id <= UINT32_MAX;
    if (fits)
        memcpy(message, request.buf, (size_t)t.size);
    PyBuffer_Release(&request);
    if (!fits)
        return refuse("invalid_request", "a request of %zd bytes with id %llu is no claim", t.size,
                      (unsigned long long)request_id);
    put32(message + REQUEST_ID_AT, (uint32_t)request_id);
    put64(message + t.size - LEASED_SIZE, seq);
    put64(message + t.size - LEASED_SIZE + 8, lease);
    if (!take_buffer(args[5], true, &t.window))
        return NULL;
    Py_ssize_t found = talk(&t);
    PyObject *result = NULL;
    frame_t f;
    body_t b;
    if (found >= 0)
        result = is_next_job(t.window.buf, found, (uint32_t)request_id, &f, &b) ? next_job(t.window.buf, &f, &b)
                                                                             : PyLong_FromSsize_t(found);
    PyBuffer_Release(&t.window);
    return result;
}
