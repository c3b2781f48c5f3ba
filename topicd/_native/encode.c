/* Frames as a client sends them: topic id, seq, time and checksum blank. Of any source, and of lists of bytes. */
#include "encode.h"

/* ---- of any source ---- */

static inline void data_close(data_t *d)
{
    if (d->held)
        PyBuffer_Release(&d->view);
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
    p[NODE_LEN_AT] = (uint8_t)r->node_len;
    p[HOPS_AT] = 0;
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

PyObject *encode(const source_t *s)
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

/* ---- of lists ---- */

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
