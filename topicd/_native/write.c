/* Batches on their way in: what a client lays out (encode) and what a shard accepts and fills in (stamp). */
#include "core.h"
#include "checksum.h"

/* ---- meta: exactly one msgpack map, walked without recursion or allocation ---- */

typedef struct {
    const uint8_t *p, *end;
} reader_t;

typedef enum { ITEM_SCALAR, ITEM_ARRAY, ITEM_MAP, ITEM_CUT, ITEM_INVALID } item_kind;

/* A big-endian count of `width` bytes. */
static bool read_count(reader_t *r, unsigned width, uint64_t *count)
{
    if ((size_t)(r->end - r->p) < width)
        return false;
    for (*count = 0; width; width--)
        *count = *count << 8 | *r->p++;
    return true;
}

static item_kind skip(reader_t *r, uint64_t bytes)
{
    if ((uint64_t)(r->end - r->p) < bytes)
        return ITEM_CUT;
    r->p += bytes;
    return ITEM_SCALAR;
}

/* str, bin or ext with a length field; ext has a type byte more. */
static item_kind skip_sized(reader_t *r, unsigned width, unsigned more)
{
    uint64_t length;
    return read_count(r, width, &length) ? skip(r, length + more) : ITEM_CUT;
}

static item_kind open_sized(reader_t *r, unsigned width, item_kind kind, uint64_t *count)
{
    return read_count(r, width, count) ? kind : ITEM_CUT;
}

/* Reads one head; scalars are skipped whole, containers leave their number of entries in *count. */
static item_kind read_item(reader_t *r, uint64_t *count)
{
    if (r->p == r->end)
        return ITEM_CUT;
    uint8_t head = *r->p++;
    if (head <= 0x7f || head >= 0xe0)
        return ITEM_SCALAR;
    if (head <= 0x9f) {
        *count = head & 0x0f;
        return head <= 0x8f ? ITEM_MAP : ITEM_ARRAY;
    }
    if (head <= 0xbf)
        return skip(r, head & 0x1f);
    switch (head) {
    case 0xc0: case 0xc2: case 0xc3: return ITEM_SCALAR; /* nil, false, true */
    case 0xc4: case 0xc5: case 0xc6: return skip_sized(r, 1u << (head - 0xc4), 0); /* bin */
    case 0xc7: case 0xc8: case 0xc9: return skip_sized(r, 1u << (head - 0xc7), 1); /* ext */
    case 0xca: return skip(r, 4); /* floats */
    case 0xcb: return skip(r, 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return skip(r, 1u << (head - 0xcc)); /* uints */
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return skip(r, 1u << (head - 0xd0)); /* ints */
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return skip(r, 1 + (1u << (head - 0xd4))); /* fixext */
    case 0xd9: case 0xda: case 0xdb: return skip_sized(r, 1u << (head - 0xd9), 0); /* str */
    case 0xdc: case 0xdd: return open_sized(r, 2u << (head - 0xdc), ITEM_ARRAY, count);
    case 0xde: case 0xdf: return open_sized(r, 2u << (head - 0xde), ITEM_MAP, count);
    default: return ITEM_INVALID; /* 0xc1 */
    }
}

/* Every turn consumes a byte, so a huge claimed count ends as "cut short" after at most MAX_META turns. */
static bool meta_is_map(uint64_t record, const uint8_t *meta, uint32_t length)
{
    typedef unsigned long long ull;
    reader_t r = {meta, meta + length};
    uint64_t open[MAX_META_DEPTH] = {1}, count = 0; /* open[d]: items still to come at depth d */
    unsigned depth = 0;
    bool first = true;
    do {
        item_kind kind = read_item(&r, &count);
        if (kind == ITEM_CUT)
            return refuse("invalid_request", "record %llu: meta ends inside its msgpack map", (ull)record), false;
        if (kind == ITEM_INVALID)
            return refuse("invalid_request", "record %llu: meta holds byte 0xc1, which is not msgpack", (ull)record),
                   false;
        if (first && kind != ITEM_MAP)
            return refuse("invalid_request", "record %llu: meta is not a msgpack map", (ull)record), false;
        if (first && count > MAX_META_KEYS)
            return refuse("record_too_large", "record %llu: meta has %llu keys, at most %u are allowed", (ull)record,
                          (ull)count, MAX_META_KEYS),
                   false;
        if (!first)
            open[depth]--;
        if (kind == ITEM_MAP || kind == ITEM_ARRAY) {
            if (!first && ++depth == MAX_META_DEPTH)
                return refuse("invalid_request", "record %llu: meta is nested deeper than %u", (ull)record,
                              MAX_META_DEPTH),
                       false;
            open[depth] = kind == ITEM_MAP ? 2 * count : count;
        }
        first = false;
        while (depth && !open[depth])
            depth--;
    } while (depth || open[0]);
    if (r.p != r.end)
        return refuse("invalid_request", "record %llu: meta has %llu bytes behind its msgpack map", (ull)record,
                      (ull)(r.end - r.p)),
               false;
    return true;
}

/* ---- limits of one record, the same for both directions ---- */

static bool part_fits(uint64_t record, const char *part, uint64_t size, uint32_t limit)
{
    if (size <= limit)
        return true;
    refuse("record_too_large", "record %llu: %s has %llu bytes, at most %u are allowed", (unsigned long long)record,
           part, (unsigned long long)size, limit);
    return false;
}

/* meta is NULL when there is none. */
static bool record_fits(uint64_t record, uint64_t node, uint64_t tag, const uint8_t *meta, uint64_t meta_len,
                        uint64_t payload)
{
    if (!part_fits(record, "node", node, MAX_NODE) || !part_fits(record, "tag", tag, MAX_TAG) ||
        !part_fits(record, "meta", meta_len, MAX_META) ||
        !part_fits(record, "data with meta", payload + meta_len, MAX_DATA_AND_META))
        return false;
    return !meta || meta_is_map(record, meta, (uint32_t)meta_len);
}

static PyObject *refuse_records(uint64_t found)
{
    return refuse("batch_too_large", "the batch has %s%llu records, at most %u are allowed",
                  found ? "" : "more than ", (unsigned long long)(found ? found : MAX_BATCH_RECORDS),
                  MAX_BATCH_RECORDS);
}

static bool batch_fits(uint64_t content)
{
    if (content <= MAX_BATCH_BYTES)
        return true;
    refuse("batch_too_large", "the batch has %llu bytes, at most %u are allowed", (unsigned long long)content,
           MAX_BATCH_BYTES);
    return false;
}

/* ---- stamp ---- */

static bool flag_agrees(uint64_t record, const char *part, bool flag, uint32_t length)
{
    if (flag == (length > 0))
        return true;
    refuse("invalid_request", "record %llu: the %s flag is %s but the %s has %u bytes", (unsigned long long)record,
           part, flag ? "set" : "clear", part, length);
    return false;
}

static bool append_is_valid(uint64_t record, const frame_t *f, bool last)
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
    if (!flag_agrees(record, "node", f->flags & FLAG_NODE, f->node_len) ||
        !flag_agrees(record, "tag", f->flags & FLAG_TAG, f->tag_len))
        return false;
    if (!frame_body(f, &body))
        return refuse("invalid_request", "record %llu: data of %u bytes is too short for its meta", (ull)record,
                      f->data_len),
               false;
    if (body.meta && !flag_agrees(record, "meta", true, body.meta_len))
        return false;
    if (!record_fits(record, f->node_len, f->tag_len, body.meta, body.meta_len, body.payload_len))
        return false;
    if ((f->flags & FLAG_MORE) && last)
        return refuse("invalid_request", "record %llu: the more flag is set on the last record", (ull)record), false;
    if (!(f->flags & FLAG_MORE) && !last)
        return refuse("invalid_request", "record %llu: the more flag is clear but records follow", (ull)record), false;
    return true;
}

/* Fills at[] with the frames' offsets; their number, or 0 with an exception set. */
static uint32_t validate_batch(const span_t *span, uint32_t *at)
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
        if (!append_is_valid(count, &f, pos + f.size == length))
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

/* stamp_frames(batch, start, end, topic_id, first_seq, ts, durable) -> packed u32 offsets */
CORE_FUNCTION(core_stamp_frames)
{
    (void)module;
    span_t span;
    uint64_t topic_id, first_seq, ts;
    uint32_t at[MAX_BATCH_RECORDS], count;
    PyObject *offsets = NULL;
    if (!take_count("stamp_frames", nargs, 7) || !span_open(&span, args, true))
        return NULL;
    int durable = PyObject_IsTrue(args[6]);
    if (durable >= 0 && take_u64(args[3], "topic_id", &topic_id) && take_u64(args[4], "first_seq", &first_seq) &&
        take_u64(args[5], "ts", &ts) && (count = validate_batch(&span, at)) && seqs_fit(first_seq, count, ts))
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

/* ---- encode ---- */

/* One of tags, nodes, metas: absent, one value for all, or one value per record. */
typedef struct {
    const char *name;
    PyObject *all;   /* borrowed bytes, or NULL */
    PyObject *items; /* owned tuple, or NULL */
} column_t;

static bool column_open(column_t *c, PyObject *value, const char *name, bool broadcast, Py_ssize_t records)
{
    *c = (column_t){name, NULL, NULL};
    if (value == Py_None)
        return true;
    if (broadcast && PyBytes_Check(value)) {
        c->all = value;
        return true;
    }
    c->items = PySequence_Tuple(value);
    if (!c->items)
        return false;
    if (PyTuple_GET_SIZE(c->items) == records)
        return true;
    refuse("invalid_request", "%ss has %zd values for %zd records", name, PyTuple_GET_SIZE(c->items), records);
    Py_CLEAR(c->items);
    return false;
}

static void column_close(column_t *c) { Py_CLEAR(c->items); }

/* The bytes of record i, *p NULL when absent; present but empty is refused. */
static bool column_get(const column_t *c, Py_ssize_t i, const uint8_t **p, uint64_t *length)
{
    PyObject *value = c->items ? PyTuple_GET_ITEM(c->items, i) : c->all;
    *p = NULL;
    *length = 0;
    if (!value || value == Py_None)
        return true;
    if (!PyBytes_Check(value)) {
        PyErr_Format(PyExc_TypeError, "record %zd: %s must be bytes or None, not %s", i, c->name,
                     Py_TYPE(value)->tp_name);
        return false;
    }
    *p = (const uint8_t *)PyBytes_AS_STRING(value);
    *length = (uint64_t)PyBytes_GET_SIZE(value);
    if (*length)
        return true;
    refuse("invalid_request", "record %zd: empty %s", i, c->name);
    return false;
}

/* Data of record i. bytes need no buffer request, which is most of the cost of a small record. */
typedef struct {
    const uint8_t *p;
    uint64_t length;
    Py_buffer view;
    bool held;
} data_t;

static bool data_open(data_t *d, PyObject *value)
{
    d->held = !PyBytes_CheckExact(value);
    if (!d->held) {
        d->p = (const uint8_t *)PyBytes_AS_STRING(value);
        d->length = (uint64_t)PyBytes_GET_SIZE(value);
        return true;
    }
    if (PyObject_GetBuffer(value, &d->view, PyBUF_SIMPLE) < 0)
        return false;
    d->p = d->view.buf;
    d->length = (uint64_t)d->view.len;
    return true;
}

static inline void data_close(data_t *d)
{
    if (d->held)
        PyBuffer_Release(&d->view);
}

typedef struct {
    const uint8_t *tag, *node, *meta;
    uint64_t tag_len, node_len, meta_len;
    data_t data;
} record_t;

/* Where records come from: the first member of batch_t and table_t. */
typedef struct source_t {
    bool (*open)(const struct source_t *source, Py_ssize_t i, record_t *r); /* false with an exception set */
    Py_ssize_t count;
} source_t;

typedef struct {
    source_t source;
    PyObject *datas; /* owned tuple: its items cannot go away while foreign buffers are asked for */
    column_t tags, nodes, metas;
} batch_t;

static bool batch_record(const source_t *source, Py_ssize_t i, record_t *r)
{
    const batch_t *b = (const batch_t *)source;
    return column_get(&b->nodes, i, &r->node, &r->node_len) && column_get(&b->tags, i, &r->tag, &r->tag_len) &&
           column_get(&b->metas, i, &r->meta, &r->meta_len) && data_open(&r->data, PyTuple_GET_ITEM(b->datas, i));
}

static uint64_t record_content(const record_t *r)
{
    return r->node_len + r->tag_len + (r->meta ? 2 + r->meta_len : 0) + r->data.length;
}

/* Total size of the frames, or 0 with an exception set. */
static uint64_t measure(const source_t *s)
{
    uint64_t content = 0;
    record_t r;
    for (Py_ssize_t i = 0; i < s->count; i++) {
        if (!s->open(s, i, &r))
            return 0;
        bool fits = record_fits((uint64_t)i, r.node_len, r.tag_len, r.meta, r.meta_len, r.data.length);
        content += record_content(&r);
        data_close(&r.data);
        if (!fits)
            return 0;
    }
    return batch_fits(content) ? content + (uint64_t)s->count * FRAME_OVERHEAD : 0;
}

static uint8_t *put_bytes(uint8_t *to, const uint8_t *from, uint64_t length)
{
    if (length) /* memcpy from NULL is undefined even for nothing */
        memcpy(to, from, length);
    return to + length;
}

static uint8_t *put_frame(uint8_t *p, const record_t *r, bool last)
{
    uint64_t content = record_content(r);
    memset(p, 0, FRAME_HEADER);
    put32(p, (uint32_t)(content + MIN_FRAME_LEN));
    p[TYPE_AT] = TYPE_APPEND;
    p[FLAGS_AT] = (uint8_t)((r->tag ? FLAG_TAG : 0) | (r->node ? FLAG_NODE : 0) | (r->meta ? FLAG_META : 0) |
                            (last ? 0 : FLAG_MORE));
    put16(p + NODE_LEN_AT, (uint16_t)r->node_len);
    put16(p + TAG_LEN_AT, (uint16_t)r->tag_len);
    put32(p + DATA_LEN_AT, (uint32_t)(content - r->node_len - r->tag_len));
    p = put_bytes(p + FRAME_HEADER, r->node, r->node_len);
    p = put_bytes(p, r->tag, r->tag_len);
    if (r->meta) {
        put16(p, (uint16_t)r->meta_len);
        p = put_bytes(p + 2, r->meta, r->meta_len);
    }
    p = put_bytes(p, r->data.p, r->data.length);
    memset(p, 0, FRAME_CHECKSUM);
    return p + FRAME_CHECKSUM;
}

/* False with an exception set when a foreign buffer no longer has the length it was measured with. */
static bool lay_out(const source_t *s, uint8_t *p, uint64_t size)
{
    uint8_t *end = p + size;
    record_t r;
    for (Py_ssize_t i = 0; i < s->count; i++) {
        if (!s->open(s, i, &r))
            return false;
        bool fits = record_content(&r) + FRAME_OVERHEAD <= (uint64_t)(end - p);
        if (fits)
            p = put_frame(p, &r, i + 1 == s->count);
        data_close(&r.data);
        if (!fits)
            break;
    }
    if (p == end)
        return true;
    refuse("invalid_request", "a record changed its size while it was encoded");
    return false;
}

static PyObject *encode(const source_t *s)
{
    if (s->count == 0)
        return refuse("invalid_request", "the batch is empty");
    if (s->count > (Py_ssize_t)MAX_BATCH_RECORDS)
        return refuse_records((uint64_t)s->count);
    uint64_t size = measure(s);
    PyObject *out = size ? PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
    if (out && !lay_out(s, (uint8_t *)PyByteArray_AS_STRING(out), size))
        Py_CLEAR(out);
    return out;
}

/* encode_batch(datas, tags, nodes, metas) -> bytearray */
CORE_FUNCTION(core_encode_batch)
{
    (void)module;
    batch_t b = {.source.open = batch_record};
    PyObject *out = NULL;
    if (!take_count("encode_batch", nargs, 4) || !(b.datas = PySequence_Tuple(args[0])))
        return NULL;
    Py_ssize_t count = b.source.count = PyTuple_GET_SIZE(b.datas);
    if (column_open(&b.tags, args[1], "tag", true, count) && column_open(&b.nodes, args[2], "node", true, count) &&
        column_open(&b.metas, args[3], "meta", false, count))
        out = encode(&b.source);
    column_close(&b.tags);
    column_close(&b.nodes);
    column_close(&b.metas);
    Py_DECREF(b.datas);
    return out;
}

/* ---- encode from Arrow columns ---- */

/* Absent, one value for all, or variable-length values with int32 offsets of which rows from `first` on are meant. */
typedef struct {
    const char *name;
    const uint8_t *all; /* borrowed */
    uint64_t all_len;
    Py_buffer valid, offsets, bytes; /* .obj is NULL where there is none */
    uint64_t first;
} arrow_t;

static void arrow_close(arrow_t *c)
{
    PyBuffer_Release(&c->valid); /* a buffer without an object is passed over */
    PyBuffer_Release(&c->offsets);
    PyBuffer_Release(&c->bytes);
}

static bool arrow_covers(const arrow_t *c, uint64_t rows)
{
    uint64_t end = c->first + rows;
    if (c->first <= UINT32_MAX && (uint64_t)c->offsets.len / 4 > end &&
        (!c->valid.obj || (uint64_t)c->valid.len * 8 >= end))
        return true;
    refuse("invalid_request", "%s has buffers too short for %llu rows from row %llu on", c->name,
           (unsigned long long)rows, (unsigned long long)c->first);
    return false;
}

/* c is zero; closed by the caller whatever happens. */
static bool arrow_open(arrow_t *c, PyObject *value, const char *name, bool broadcast, uint64_t rows)
{
    c->name = name;
    if (value == Py_None)
        return true;
    if (broadcast && PyBytes_Check(value)) {
        c->all = (const uint8_t *)PyBytes_AS_STRING(value);
        c->all_len = (uint64_t)PyBytes_GET_SIZE(value);
        return true;
    }
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 4) {
        PyErr_Format(PyExc_TypeError, "%s must be (valid, offsets, bytes, first)", name);
        return false;
    }
    PyObject *valid = PyTuple_GET_ITEM(value, 0);
    return (valid == Py_None || take_buffer(valid, false, &c->valid)) &&
           take_buffer(PyTuple_GET_ITEM(value, 1), false, &c->offsets) &&
           take_buffer(PyTuple_GET_ITEM(value, 2), false, &c->bytes) &&
           take_u64(PyTuple_GET_ITEM(value, 3), "first", &c->first) && arrow_covers(c, rows);
}

/* *p is NULL where there is no value; the offsets are believed only as far as the bytes go. */
static bool arrow_get(const arrow_t *c, Py_ssize_t i, const uint8_t **p, uint64_t *length)
{
    *p = c->all_len ? c->all : NULL;
    *length = c->all_len;
    if (!c->offsets.obj)
        return true;
    uint64_t row = c->first + (uint64_t)i;
    if (c->valid.obj && !(((const uint8_t *)c->valid.buf)[row / 8] >> (row % 8) & 1))
        return true;
    const uint8_t *offsets = c->offsets.buf;
    int32_t start = (int32_t)get32(offsets + 4 * row), end = (int32_t)get32(offsets + 4 * row + 4);
    if (start < 0 || end < start || end > c->bytes.len) {
        refuse("invalid_request", "record %zd: %s lies at %d to %d of %zd bytes", i, c->name, start, end,
               c->bytes.len);
        return false;
    }
    static const uint8_t nothing[1]; /* a buffer of no bytes may have no address */
    *p = c->bytes.buf ? (const uint8_t *)c->bytes.buf + start : nothing;
    *length = (uint64_t)(end - start);
    return true;
}

/* A label: an empty one is none. */
static bool arrow_label(const arrow_t *c, Py_ssize_t i, const uint8_t **p, uint64_t *length)
{
    if (!arrow_get(c, i, p, length))
        return false;
    if (!*length)
        *p = NULL;
    return true;
}

typedef struct {
    source_t source;
    arrow_t datas, tags, nodes, metas;
} table_t;

static bool table_record(const source_t *source, Py_ssize_t i, record_t *r)
{
    const table_t *t = (const table_t *)source;
    r->data.held = false;
    if (!arrow_label(&t->nodes, i, &r->node, &r->node_len) || !arrow_label(&t->tags, i, &r->tag, &r->tag_len) ||
        !arrow_label(&t->metas, i, &r->meta, &r->meta_len) || !arrow_get(&t->datas, i, &r->data.p, &r->data.length))
        return false;
    if (!r->data.p)
        refuse("invalid_request", "record %zd: data is null", i);
    return r->data.p;
}

/* encode_columns(count, datas, tags, nodes, metas) -> bytearray */
CORE_FUNCTION(core_encode_columns)
{
    (void)module;
    table_t t = {.source.open = table_record};
    uint64_t count;
    PyObject *out = NULL;
    if (!take_count("encode_columns", nargs, 5) || !take_u64(args[0], "count", &count))
        return NULL;
    if (count > MAX_BATCH_RECORDS)
        return refuse_records(count);
    t.source.count = (Py_ssize_t)count;
    if (arrow_open(&t.datas, args[1], "data", false, count) && arrow_open(&t.tags, args[2], "tag", true, count) &&
        arrow_open(&t.nodes, args[3], "node", true, count) && arrow_open(&t.metas, args[4], "meta", false, count))
        out = encode(&t.source);
    arrow_close(&t.datas);
    arrow_close(&t.tags);
    arrow_close(&t.nodes);
    arrow_close(&t.metas);
    return out;
}
