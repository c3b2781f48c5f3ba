/* Batches on their way in: what a shard accepts of a client, and what it fills in. */
#include "record.h"
#include "checksum.h"

static bool flag_agrees(uint64_t record, const char *part, bool flag, uint32_t length)
{
    if (flag == (length > 0))
        return true;
    refuse("invalid_request", "record %llu: the %s flag is %s but the %s has %u bytes", (unsigned long long)record,
           part, flag ? "set" : "clear", part, length);
    return false;
}

/* copied: by a router, which has counted its hops and may have put its stamp into the meta. */
static bool append_is_valid(uint64_t record, const frame_t *f, bool last, bool copied)
{
    typedef unsigned long long ull;
    body_t body;
    if (f->type != TYPE_APPEND)
        return refuse("invalid_request", "record %llu: frame type %u, only %u (append) is allowed", (ull)record,
                      f->type, TYPE_APPEND),
               false;
    if (f->flags & ~FLAGS_KNOWN)
        return refuse("invalid_request", "record %llu: flags %u, only bits of %u are known", (ull)record, f->flags,
                      FLAGS_KNOWN),
               false;
    if (f->hops && !copied)
        return refuse("invalid_request", "record %llu: %u hops, only routers count them", (ull)record, f->hops), false;
    if (!flag_agrees(record, "node", f->flags & FLAG_NODE, f->node_len) ||
        !flag_agrees(record, "tag", f->flags & FLAG_TAG, f->tag_len))
        return false;
    if (!frame_body(f, &body))
        return refuse("invalid_request", "record %llu: data of %u bytes is too short for its meta", (ull)record,
                      f->data_len),
               false;
    if (body.meta && !flag_agrees(record, "meta", true, body.meta_len))
        return false;
    if (copied ? !copy_fits(record, f->node_len, f->tag_len, body.meta_len, body.payload_len)
               : !record_fits(record, f->node_len, f->tag_len, body.meta, body.meta_len, body.payload_len))
        return false;
    if ((f->flags & FLAG_MORE) && last)
        return refuse("invalid_request", "record %llu: the more flag is set on the last record", (ull)record), false;
    if (!(f->flags & FLAG_MORE) && !last)
        return refuse("invalid_request", "record %llu: the more flag is clear but records follow", (ull)record), false;
    return true;
}

/* Fills at[] with the frames' offsets; their number, or 0 with an exception set. */
static uint32_t validate_batch(const span_t *span, uint32_t *at, bool copied)
{
    uint64_t length = span->end - span->start, pos = 0;
    uint32_t count = 0;
    frame_t f;
    if (length == 0)
        return refuse("invalid_request", "the batch is empty"), 0;
    if (length > (uint64_t)MAX_BATCH_BYTES + (uint64_t)MAX_BATCH_RECORDS * FRAME_OVERHEAD)
        return refuse("batch_too_large", "a batch of %llu bytes with framing exceeds any that is allowed",
                      (unsigned long long)length),
               0;
    while (pos < length) {
        const uint8_t *p = span->base + span->start + pos;
        if (count == MAX_BATCH_RECORDS)
            return refuse_records(0), 0;
        frame_fault fault = frame_parse(p, length - pos, &f);
        if (fault != FRAME_OK)
            return refuse_frame("invalid_request", "record", count, p, length - pos, fault), 0;
        if (!append_is_valid(count, &f, pos + f.size == length, copied))
            return 0;
        at[count++] = (uint32_t)pos;
        pos += f.size;
    }
    return batch_fits(length - (uint64_t)count * FRAME_OVERHEAD) ? count : 0;
}

static bool seqs_fit(uint64_t first_seq, uint32_t count, uint64_t ts)
{
    typedef unsigned long long ull;
    if (first_seq < 1 || first_seq > (uint64_t)MAX_SEQ - (count - 1))
        return refuse("invalid_request", "seqs from %llu for %u records leave 1 to %llu", (ull)first_seq, count,
                      (ull)MAX_SEQ),
               false;
    if (ts > (uint64_t)MAX_SEQ)
        return refuse("invalid_request", "ts %llu is beyond %llu", (ull)ts, (ull)MAX_SEQ), false;
    return true;
}

/* Sizes come from the validated offsets, never from the buffer again. */
static void fill_batch(uint8_t *batch, uint64_t length, const uint32_t *at, uint32_t count, uint64_t topic_id,
                       uint64_t seq, uint64_t ts, bool durable)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *frame = batch + at[i];
        uint64_t size = (i + 1 < count ? at[i + 1] : length) - at[i];
        frame[FLAGS_AT] = (uint8_t)((frame[FLAGS_AT] & ~FLAG_DURABLE) | (durable ? FLAG_DURABLE : 0));
        put64(frame + TOPIC_AT, topic_id);
        put64(frame + SEQ_AT, seq + i);
        put64(frame + TS_AT, ts);
        put64(frame + size - FRAME_CHECKSUM, frame_checksum(frame, size));
    }
}

/* stamp_frames(batch, start, end, topic_id, first_seq, ts, durable[, copied]) -> packed u32 offsets */
CORE_FUNCTION(core_stamp_frames)
{
    (void)module;
    span_t span;
    uint64_t topic_id, first_seq, ts;
    uint32_t at[MAX_BATCH_RECORDS], count;
    PyObject *offsets = NULL;
    if (!take_count("stamp_frames", nargs == 8 ? 7 : nargs, 7) || !span_open(&span, args, true))
        return NULL;
    int durable = PyObject_IsTrue(args[6]), copied = nargs == 8 ? PyObject_IsTrue(args[7]) : 0;
    if (durable >= 0 && copied >= 0 && take_u64(args[3], "topic_id", &topic_id) && take_u64(args[4], "first_seq", &first_seq) &&
        take_u64(args[5], "ts", &ts) && (count = validate_batch(&span, at, copied)) && seqs_fit(first_seq, count, ts))
        offsets = PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)(count * sizeof *at));
    if (offsets) { /* last, so that a failed call has touched nothing */
        PyThreadState *away = span.end - span.start > GIL_FREE_BYTES ? PyEval_SaveThread() : NULL;
        fill_batch(span.base + span.start, span.end - span.start, at, count, topic_id, first_seq, ts, durable);
        if (away)
            PyEval_RestoreThread(away);
    }
    span_close(&span);
    return offsets;
}

/* Each keeps its own time, as long as times do not go back, and is a batch by itself: what a copy looks like does not
   depend on what it was copied together with. */
static void fill_copies(uint8_t *batch, uint64_t length, const uint32_t *at, uint32_t count, uint64_t topic_id,
                        uint64_t seq, uint64_t ts)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *frame = batch + at[i];
        uint64_t size = (i + 1 < count ? at[i + 1] : length) - at[i], own = get64(frame + TS_AT);
        if (own > ts && own <= (uint64_t)MAX_SEQ)
            ts = own;
        frame[FLAGS_AT] &= (uint8_t)~(FLAG_DURABLE | FLAG_MORE);
        put64(frame + TOPIC_AT, topic_id);
        put64(frame + SEQ_AT, seq + i);
        put64(frame + TS_AT, ts);
        put64(frame + size - FRAME_CHECKSUM, frame_checksum(frame, size));
    }
}

/* stamp_copies(batch, start, end, topic_id, first_seq, ts) -> packed u32 offsets */
CORE_FUNCTION(core_stamp_copies)
{
    (void)module;
    span_t span;
    uint64_t topic_id, first_seq, ts;
    uint32_t at[MAX_BATCH_RECORDS], count;
    PyObject *offsets = NULL;
    if (!take_count("stamp_copies", nargs, 6) || !span_open(&span, args, true))
        return NULL;
    if (take_u64(args[3], "topic_id", &topic_id) && take_u64(args[4], "first_seq", &first_seq) &&
        take_u64(args[5], "ts", &ts) && (count = validate_batch(&span, at, true)) && seqs_fit(first_seq, count, ts))
        offsets = PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)(count * sizeof *at));
    if (offsets) { /* last, so that a failed call has touched nothing */
        PyThreadState *away = span.end - span.start > GIL_FREE_BYTES ? PyEval_SaveThread() : NULL;
        fill_copies(span.base + span.start, span.end - span.start, at, count, topic_id, first_seq, ts);
        if (away)
            PyEval_RestoreThread(away);
    }
    span_close(&span);
    return offsets;
}
