/* Single-record appends that came one behind the other (docs/protocol.md): stamped together, answered together. */
#include "core.h"
#include "checksum.h"

#define OP_APPEND 0x20u
#define OP_APPENDED 0xA0u
#define MESSAGE_HEADER 10u /* u32 length, u8 op, u8 flags, u32 request id */
#define APPEND_FIXED 28u   /* u64 topic_id, u64 producer_id, u64 batch_no, u32 count */
#define FRAME_IN_MESSAGE (MESSAGE_HEADER + APPEND_FIXED)
#define ANSWER_SIZE (MESSAGE_HEADER + 20u) /* u64 first_seq, u32 count, u64 head_seq */
#define PRODUCER_DATA 28u                  /* u64 producer_id, u64 batch_no, u64 first_seq, u32 count */
#define PRODUCER_SIZE (FRAME_OVERHEAD + PRODUCER_DATA)
#define RUN_MAX 512u

typedef struct {
    const uint8_t *frame;
    uint32_t size, request_id;
} member_t;

/* Who writes what: the same for a whole run, but for the numbers that count up. */
typedef struct {
    uint64_t topic_id, producer_id, batch_no, first_seq, ts;
    bool durable;
} run_t;

/* Nothing but data, tag and node, each as its flag says. Whatever else there is, stamp_frames looks at closely. */
static bool is_plain(const uint8_t *p, uint64_t left)
{
    frame_t f;
    return frame_parse(p, left, &f) == FRAME_OK && f.size == left && f.type == TYPE_APPEND &&
           !(f.flags & ~(FLAG_TAG | FLAG_NODE | FLAG_DURABLE)) && f.tag_len <= MAX_TAG && f.node_len <= MAX_NODE &&
           !f.hops &&
           f.data_len <= MAX_DATA_AND_META && !(f.flags & FLAG_TAG) == !f.tag_len &&
           !(f.flags & FLAG_NODE) == !f.node_len;
}

/* The message at p, if it is whole and goes on with the run; its size, or 0. */
static uint64_t take_member(const uint8_t *p, uint64_t left, const run_t *run, uint32_t index, member_t *member)
{
    if (left < FRAME_IN_MESSAGE)
        return 0;
    uint64_t size = (uint64_t)LEN_FIELD + get32(p);
    const uint8_t *fixed = p + MESSAGE_HEADER;
    if (size > left || size < FRAME_IN_MESSAGE || p[4] != OP_APPEND || p[5] || get64(fixed) != run->topic_id ||
        get64(fixed + 8) != run->producer_id || get64(fixed + 16) != run->batch_no + index || get32(fixed + 24) != 1)
        return 0;
    if (!is_plain(p + FRAME_IN_MESSAGE, size - FRAME_IN_MESSAGE))
        return 0;
    *member = (member_t){p + FRAME_IN_MESSAGE, (uint32_t)(size - FRAME_IN_MESSAGE), get32(p + 6)};
    return size;
}

/* Same bytes as topicd.frames.producer_frame. */
static void put_producer(uint8_t *p, const run_t *run, uint32_t index)
{
    memset(p, 0, FRAME_HEADER);
    put32(p, PRODUCER_SIZE - LEN_FIELD);
    p[TYPE_AT] = TYPE_PRODUCER;
    p[FLAGS_AT] = FLAG_MORE;
    put64(p + TOPIC_AT, run->topic_id);
    put64(p + SEQ_AT, run->first_seq + index);
    put64(p + TS_AT, run->ts);
    put32(p + DATA_LEN_AT, PRODUCER_DATA);
    put64(p + FRAME_HEADER, run->producer_id);
    put64(p + FRAME_HEADER + 8, run->batch_no + index);
    put64(p + FRAME_HEADER + 16, run->first_seq + index);
    put32(p + FRAME_HEADER + 24, 1);
    put64(p + PRODUCER_SIZE - FRAME_CHECKSUM, frame_checksum(p, PRODUCER_SIZE));
}

static void put_frame(uint8_t *p, const member_t *member, const run_t *run, uint32_t index)
{
    memcpy(p, member->frame, member->size);
    p[FLAGS_AT] = (uint8_t)((p[FLAGS_AT] & ~FLAG_DURABLE) | (run->durable ? FLAG_DURABLE : 0));
    put64(p + TOPIC_AT, run->topic_id);
    put64(p + SEQ_AT, run->first_seq + index);
    put64(p + TS_AT, run->ts);
    put64(p + member->size - FRAME_CHECKSUM, frame_checksum(p, member->size));
}

/* (bytes used up, frames, offsets, wire, request ids) */
static PyObject *lay_out(const member_t *members, uint32_t count, uint64_t used, const run_t *run)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < count; i++)
        size += members[i].size;
    PyObject *frames = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint32_t)));
    PyObject *wire = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + (uint64_t)count * PRODUCER_SIZE));
    PyObject *ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint32_t)));
    if (!frames || !offsets || !wire || !ids) {
        Py_XDECREF(frames);
        Py_XDECREF(offsets);
        Py_XDECREF(wire);
        Py_XDECREF(ids);
        return NULL;
    }
    uint8_t *frame = (uint8_t *)PyByteArray_AS_STRING(frames), *first = frame;
    uint8_t *offset = (uint8_t *)PyBytes_AS_STRING(offsets), *id = (uint8_t *)PyBytes_AS_STRING(ids);
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(wire);
    for (uint32_t i = 0; i < count; i++) {
        put32(offset + i * sizeof(uint32_t), (uint32_t)(frame - first));
        put32(id + i * sizeof(uint32_t), members[i].request_id);
        put_frame(frame, &members[i], run, i);
        put_producer(out, run, i);
        memcpy(out + PRODUCER_SIZE, frame, members[i].size);
        out += PRODUCER_SIZE + members[i].size;
        frame += members[i].size;
    }
    return Py_BuildValue("(KNNNN)", (unsigned long long)used, frames, offsets, wire, ids);
}

/* take_run(buf, start, end, topic_id, producer_id, batch_no, first_seq, ts, durable, most, max_bytes) */
CORE_FUNCTION(core_take_run)
{
    (void)module;
    span_t span;
    run_t run;
    member_t members[RUN_MAX];
    uint64_t most, max_bytes, used = 0, bytes = 0, size;
    uint32_t count = 0;
    PyObject *result = NULL;
    if (!take_count("take_run", nargs, 11) || !span_open(&span, args, false))
        return NULL;
    int durable = PyObject_IsTrue(args[8]);
    if (durable < 0 || !take_u64(args[3], "topic_id", &run.topic_id) ||
        !take_u64(args[4], "producer_id", &run.producer_id) || !take_u64(args[5], "batch_no", &run.batch_no) ||
        !take_u64(args[6], "first_seq", &run.first_seq) || !take_u64(args[7], "ts", &run.ts) ||
        !take_u64(args[9], "most", &most) || !take_u64(args[10], "max_bytes", &max_bytes))
        goto done;
    run.durable = durable;
    if (most > RUN_MAX)
        most = RUN_MAX;
    if (run.first_seq < 1 || run.first_seq > (uint64_t)MAX_SEQ - RUN_MAX || run.ts > (uint64_t)MAX_SEQ ||
        run.batch_no > UINT64_MAX - RUN_MAX)
        most = 0;
    while (count < most) {
        const uint8_t *p = span.base + span.start + used;
        size = take_member(p, span.end - span.start - used, &run, count, &members[count]);
        if (!size || bytes + members[count].size > max_bytes)
            break;
        bytes += members[count++].size;
        used += size;
    }
    result = count ? lay_out(members, count, used, &run) : Py_NewRef(Py_None);
done:
    span_close(&span);
    return result;
}

/* run_answers(request_ids, first_seq, head_seq) -> one append answer per request */
CORE_FUNCTION(core_run_answers)
{
    (void)module;
    Py_buffer ids;
    uint64_t first_seq, head_seq;
    PyObject *result = NULL;
    if (!take_count("run_answers", nargs, 3) || !take_buffer(args[0], false, &ids))
        return NULL;
    uint64_t count = (uint64_t)ids.len / sizeof(uint32_t);
    if (take_u64(args[1], "first_seq", &first_seq) && take_u64(args[2], "head_seq", &head_seq))
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * ANSWER_SIZE));
    if (result) {
        uint8_t *p = (uint8_t *)PyBytes_AS_STRING(result);
        for (uint64_t i = 0; i < count; i++, p += ANSWER_SIZE) {
            put32(p, ANSWER_SIZE - LEN_FIELD);
            p[4] = OP_APPENDED;
            p[5] = 0;
            put32(p + 6, get32((const uint8_t *)ids.buf + i * sizeof(uint32_t)));
            put64(p + MESSAGE_HEADER, first_seq + i);
            put32(p + MESSAGE_HEADER + 8, 1);
            put64(p + MESSAGE_HEADER + 12, head_seq);
        }
    }
    PyBuffer_Release(&ids);
    return result;
}
