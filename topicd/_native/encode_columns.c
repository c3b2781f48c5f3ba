/* Frames of Arrow columns: no look at a record in Python. */
#include "encode.h"

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
