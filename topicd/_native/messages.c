/* Messages of the file channel: encoded, sent, split, scanned, found again. Contract: channel_interface.py (Messages).
 *
 * Message, big-endian (docs/filechannel.md):
 *
 *    0 u32 length   of the payload
 *    4 u32 crc32    over the length field and the payload: so that zeros are no message
 *    8 payload
 */
#define _GNU_SOURCE
#include "channel.h"
#include "crc32.h"
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEAD 8u
#define CHAIN 4 /* heads behind one another that must make sense before a checksum is computed in a search */

typedef unsigned long long ull;
typedef enum { GOOD, SHORT, BAD_LENGTH, BAD_CHECKSUM } message_fault;
static const char *const FAULTS[] = {"", "short", "length", "checksum"};

static inline uint32_t get32_big(const uint8_t *p) { return __builtin_bswap32(get32(p)); }
static inline void put32_big(uint8_t *p, uint32_t v) { put32(p, __builtin_bswap32(v)); }

static void write_head(uint8_t *head, const uint8_t *payload, size_t length)
{
    put32_big(head, (uint32_t)length);
    put32_big(head + 4, crc32_ieee(crc32_ieee(0, head, 4), payload, length));
}

static message_fault look(const uint8_t *p, uint64_t left, uint64_t most, uint32_t *length)
{
    if (left < HEAD)
        return SHORT;
    *length = get32_big(p);
    if (*length > most)
        return BAD_LENGTH;
    return *length > left - HEAD ? SHORT : GOOD;
}

static message_fault check(const uint8_t *p, uint64_t left, uint64_t most, uint32_t *length)
{
    message_fault fault = look(p, left, most, length);
    if (fault != GOOD)
        return fault;
    return get32_big(p + 4) == crc32_ieee(crc32_ieee(0, p, 4), p + HEAD, *length) ? GOOD : BAD_CHECKSUM;
}

/* crc32(data, start) */
CORE_FUNCTION(core_crc32)
{
    (void)module;
    Py_buffer data;
    uint64_t start;
    if (!take_count("crc32", nargs, 2) || !take_u64(args[1], "start", &start) || !take_buffer(args[0], false, &data))
        return NULL;
    uint32_t crc = crc32_ieee((uint32_t)start, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static bool length_fits(uint64_t length, uint64_t most)
{
    if (length <= most)
        return true;
    refuse("record_too_large", "a message of %llu bytes exceeds %llu", (ull)length, (ull)most);
    return false;
}

/* message_head(payload, most) -> the 8 bytes before it */
CORE_FUNCTION(core_message_head)
{
    (void)module;
    Py_buffer payload;
    uint64_t most;
    uint8_t head[HEAD];
    if (!take_count("message_head", nargs, 2) || !take_u64(args[1], "most", &most) ||
        !take_buffer(args[0], false, &payload))
        return NULL;
    bool good = length_fits((uint64_t)payload.len, most);
    if (good)
        write_head(head, payload.buf, (size_t)payload.len);
    PyBuffer_Release(&payload);
    return good ? PyBytes_FromStringAndSize((char *)head, HEAD) : NULL;
}

/* measure_messages(messages, most) -> bytes with their heads; refuses what is no buffer or too large */
CORE_FUNCTION(core_measure_messages)
{
    (void)module;
    uint64_t most, total = 0;
    if (!take_count("measure_messages", nargs, 2) || !take_u64(args[1], "most", &most))
        return NULL;
    PyObject *messages = PySequence_Fast(args[0], "messages are a sequence of buffers");
    if (!messages)
        return NULL;
    bool good = true;
    for (Py_ssize_t i = 0; good && i < PySequence_Fast_GET_SIZE(messages); i++) {
        PyObject *message = PySequence_Fast_GET_ITEM(messages, i);
        uint64_t length = 0;
        if (PyBytes_Check(message))
            length = (uint64_t)PyBytes_GET_SIZE(message);
        else {
            Py_buffer payload;
            good = take_buffer(message, false, &payload);
            if (good) {
                length = (uint64_t)payload.len;
                PyBuffer_Release(&payload);
            }
        }
        good = good && length_fits(length, most);
        total += HEAD + length;
    }
    Py_DECREF(messages);
    return good ? PyLong_FromUnsignedLongLong(total) : NULL;
}

/* encode_messages(messages, first, into, at, most) -> (number of the first that found no room, end in `into`) */
CORE_FUNCTION(core_encode_messages)
{
    (void)module;
    Py_buffer into;
    uint64_t first, at, most;
    if (!take_count("encode_messages", nargs, 5) || !take_u64(args[1], "first", &first) ||
        !take_u64(args[3], "at", &at) || !take_u64(args[4], "most", &most))
        return NULL;
    PyObject *messages = PySequence_Fast(args[0], "messages are a sequence of buffers");
    if (!messages)
        return NULL;
    if (!take_buffer(args[2], true, &into)) {
        Py_DECREF(messages);
        return NULL;
    }
    bool good = at <= (uint64_t)into.len;
    if (!good)
        refuse("invalid_request", "offset %llu is outside a buffer of %zd bytes", (ull)at, into.len);
    uint64_t number = first;
    /* The size is asked for each time: taking a buffer may run code of the caller. */
    for (; good && number < (uint64_t)PySequence_Fast_GET_SIZE(messages); number++) {
        Py_buffer payload;
        good = take_buffer(PySequence_Fast_GET_ITEM(messages, (Py_ssize_t)number), false, &payload);
        if (!good)
            break;
        uint64_t length = (uint64_t)payload.len, room = (uint64_t)into.len - at;
        good = length_fits(length, most);
        bool fits = good && room >= HEAD && length <= room - HEAD;
        if (fits) {
            uint8_t *place = (uint8_t *)into.buf + at;
            memcpy(place + HEAD, payload.buf, length);
            write_head(place, place + HEAD, length);
            at += HEAD + length;
        }
        PyBuffer_Release(&payload);
        if (!fits)
            break;
    }
    PyBuffer_Release(&into);
    Py_DECREF(messages);
    return good ? Py_BuildValue("(KK)", (ull)number, (ull)at) : NULL;
}

/* Every byte of the two parts to the descriptor, without the GIL; 0 or an errno. */
static int write_parts(int fd, struct iovec *parts, int count, uint64_t offset)
{
    while (count) {
        ssize_t done = pwritev(fd, parts, count, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done ? errno : EIO;
        offset += (uint64_t)done;
        for (; count && (size_t)done >= parts->iov_len; parts++, count--)
            done -= (ssize_t)parts->iov_len;
        if (count) {
            parts->iov_base = (uint8_t *)parts->iov_base + done;
            parts->iov_len -= (size_t)done;
        }
    }
    return 0;
}

/* The words of the writer's private state: channel_interface.py. */
enum { STATE_END, STATE_SHIFT, STATE_CUT, STATE_FULL, STATE_MOST, STATE_FROM, STATE_TO, STATE_CLEARED, STATE_WORDS };

#define STORED_MOST 8192u /* a larger message is written: one call costs less than faults of its pages */

/* Does the message lie in the mapped window as a whole? */
static bool is_inside(const uint64_t *state, const Py_buffer *window, uint64_t position, uint64_t size)
{
    uint64_t from = state[STATE_FROM], to = state[STATE_TO];
    return window && position >= from && position <= to && size <= to - position && to - from <= (uint64_t)window->len;
}

/* Where a message is stored, whose pages are there then; NULL: it is to be written. */
static uint8_t *place_in(int fd, uint64_t *state, const Py_buffer *window, uint64_t position, uint64_t size)
{
    uint64_t behind = position + size, cleared = state[STATE_CLEARED];
    if (behind > cleared) {
        if (!(behind = clear_room(fd, position > cleared ? position : cleared, behind, state[STATE_TO])))
            return NULL;
        state[STATE_CLEARED] = behind;
    }
    return (uint8_t *)window->buf + (position - state[STATE_FROM]);
}

/* A message too large to be stored. Where it needs pages that are not there, zeros behind it make the whole of them. */
static int write_inside(int fd, uint64_t *state, const uint8_t *head, const Py_buffer *payload, uint64_t position)
{
    uint64_t behind = position + HEAD + (uint64_t)payload->len, zeros = 0;
    if (behind > state[STATE_CLEARED] && behind - position < CLEARED_PART)
        zeros = cleared_end(behind, state[STATE_TO]) - behind;
    struct iovec parts[3] = {
        {(void *)head, HEAD}, {payload->buf, (size_t)payload->len}, {(void *)cleared_zeros, (size_t)zeros}};
    if (write_parts(fd, parts, zeros ? 3 : 2, position)) {
        /* Without room for the zeros there may be some for the message. */
        struct iovec message[2] = {{(void *)head, HEAD}, {payload->buf, (size_t)payload->len}};
        zeros = 0;
        int error = write_parts(fd, message, 2, position);
        if (error)
            return error;
    }
    if (behind + zeros > state[STATE_CLEARED])
        state[STATE_CLEARED] = behind + zeros;
    return 0;
}

static int send_to(int fd, uint64_t *state, const Py_buffer *payload, const Py_buffer *window)
{
    uint64_t end = state[STATE_END], length = (uint64_t)payload->len, position = end - state[STATE_SHIFT];
    uint8_t head[HEAD], *place;
    int error;
    Py_BEGIN_ALLOW_THREADS
    write_head(head, payload->buf, length);
    bool inside = is_inside(state, window, position, HEAD + length);
    if (inside && HEAD + length > STORED_MOST)
        error = write_inside(fd, state, head, payload, position);
    else if (inside && (place = place_in(fd, state, window, position, HEAD + length)))
        error = store_message(place, head, HEAD, payload->buf, length);
    else {
        struct iovec parts[2] = {{head, HEAD}, {payload->buf, length}};
        error = write_parts(fd, parts, length ? 2 : 1, position);
    }
    Py_END_ALLOW_THREADS
    if (!error)
        state[STATE_END] = end + HEAD + length;
    return error;
}

/* send_message(fd, state, payload, memory, value_at, signal_at, window) -> new end; 0: there is something to do first */
CORE_FUNCTION(core_send_message)
{
    (void)module;
    Py_buffer state, payload, memory, window;
    void *words, *value, *signal;
    if (!take_count("send_message", nargs, 7))
        return NULL;
    long fd = PyLong_AsLong(args[0]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (!take_buffer(args[2], false, &payload))
        return NULL;
    if (!take_buffer(args[1], true, &state)) {
        PyBuffer_Release(&payload);
        return NULL;
    }
    PyObject *result = NULL;
    words = state.buf;
    if (state.len < (Py_ssize_t)(STATE_WORDS * 8) || (uintptr_t)words % 8) {
        refuse("invalid_request", "the state has %zd bytes", state.len);
        goto out;
    }
    uint64_t *own = words, end = own[STATE_END], length = (uint64_t)payload.len;
    if (end >= own[STATE_CUT] || length > own[STATE_MOST] || length > UINT32_MAX ||
        end + HEAD + length > own[STATE_FULL]) {
        result = PyLong_FromLong(0);
        goto out;
    }
    bool mapped = args[6] != Py_None;
    if (mapped && !take_buffer(args[6], true, &window))
        goto out;
    int error = send_to((int)fd, own, &payload, mapped ? &window : NULL);
    if (mapped)
        PyBuffer_Release(&window);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        goto out;
    }
    end = own[STATE_END];
    if (args[3] != Py_None) {
        if (!take_buffer(args[3], true, &memory))
            goto out;
        bool good = take_place(args[4], &memory, 8, &value) && take_place(args[5], &memory, 4, &signal);
        if (good)
            publish_word(value, end, signal);
        PyBuffer_Release(&memory);
        if (!good)
            goto out;
    }
    result = PyLong_FromUnsignedLongLong(end);
out:
    PyBuffer_Release(&state);
    PyBuffer_Release(&payload);
    return result;
}

/* split_messages(buffer, start, end, base, most, limit) -> (payloads, ends, position, fault) */
CORE_FUNCTION(core_split_messages)
{
    (void)module;
    span_t span;
    uint64_t base, most, limit;
    if (!take_count("split_messages", nargs, 6) || !take_u64(args[3], "base", &base) ||
        !take_u64(args[4], "most", &most) || !take_u64(args[5], "limit", &limit) || !span_open(&span, args, false))
        return NULL;
    PyObject *payloads = PyList_New(0), *ends = PyList_New(0), *result = NULL;
    uint64_t at = span.start, count = 0;
    message_fault fault = GOOD;
    uint32_t length;
    while (payloads && ends && at < span.end && count < limit) {
        fault = check(span.base + at, span.end - at, most, &length);
        if (fault != GOOD)
            break;
        PyObject *payload = PyBytes_FromStringAndSize((char *)span.base + at + HEAD, length);
        at += HEAD + length;
        PyObject *end = PyLong_FromUnsignedLongLong(base + at);
        int failed = !payload || !end || PyList_Append(payloads, payload) < 0 || PyList_Append(ends, end) < 0;
        Py_XDECREF(payload);
        Py_XDECREF(end);
        if (failed)
            goto out;
        count++;
    }
    if (payloads && ends)
        result = Py_BuildValue("(OOKs)", payloads, ends, (ull)at, FAULTS[fault]);
out:
    Py_XDECREF(payloads);
    Py_XDECREF(ends);
    span_close(&span);
    return result;
}

/* scan_messages(buffer, start, end, most) -> (count, position behind the last good one, fault) */
CORE_FUNCTION(core_scan_messages)
{
    (void)module;
    span_t span;
    uint64_t most;
    if (!take_count("scan_messages", nargs, 4) || !take_u64(args[3], "most", &most) || !span_open(&span, args, false))
        return NULL;
    uint64_t at = span.start, count = 0;
    message_fault fault = GOOD;
    uint32_t length;
    Py_BEGIN_ALLOW_THREADS
    while (at < span.end && (fault = check(span.base + at, span.end - at, most, &length)) == GOOD) {
        at += HEAD + length;
        count++;
    }
    Py_END_ALLOW_THREADS
    span_close(&span);
    return Py_BuildValue("(KKs)", (ull)count, (ull)at, FAULTS[fault]);
}

/* Do the heads from here on fit to one another, as far as CHAIN of them go? */
static bool plausible(const uint8_t *p, uint64_t left, uint64_t most)
{
    uint32_t length;
    for (int i = 0; i < CHAIN && left; i++) {
        if (look(p, left, most, &length) != GOOD)
            return false;
        p += HEAD + length;
        left -= HEAD + length;
    }
    return true;
}

/* find_message(buffer, start, end, most) -> where the next good message begins; end: nowhere */
CORE_FUNCTION(core_find_message)
{
    (void)module;
    span_t span;
    uint64_t most;
    if (!take_count("find_message", nargs, 4) || !take_u64(args[3], "most", &most) || !span_open(&span, args, false))
        return NULL;
    uint64_t at = span.start;
    uint32_t length;
    Py_BEGIN_ALLOW_THREADS
    for (; at < span.end; at++) {
        uint64_t left = span.end - at;
        if (plausible(span.base + at, left, most) && check(span.base + at, left, most, &length) == GOOD)
            break;
    }
    Py_END_ALLOW_THREADS
    span_close(&span);
    return PyLong_FromUnsignedLongLong(at);
}
