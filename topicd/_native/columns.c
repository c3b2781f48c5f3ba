/* Append frames as Arrow-ready columns: one pass measures, one fills. */
#include "core.h"

enum { DATA, TAG, NODE, META, PARTS };

typedef struct {
    const uint8_t *p; /* NULL: absent */
    uint32_t length;
} part_t;

typedef enum { STEP_APPEND, STEP_OTHER, STEP_END, STEP_BAD } step;

/* Works without the GIL; on STEP_BAD *pos stays at the frame that is not as it should be. */
static step next_append(const span_t *span, uint64_t *pos, frame_t *f, part_t *parts)
{
    body_t body;
    if (*pos >= span->end)
        return STEP_END;
    if (frame_parse(span->base + *pos, span->end - *pos, f) != FRAME_OK)
        return STEP_BAD;
    if (f->type == TYPE_APPEND) {
        if (!frame_body(f, &body))
            return STEP_BAD;
        parts[DATA] = (part_t){body.payload, body.payload_len};
        parts[TAG] = (part_t){f->flags & FLAG_TAG ? frame_tag(f) : NULL, f->tag_len};
        parts[NODE] = (part_t){f->flags & FLAG_NODE ? frame_node(f) : NULL, f->node_len};
        parts[META] = (part_t){body.meta, body.meta_len};
    }
    *pos += f->size;
    return f->type == TYPE_APPEND ? STEP_APPEND : STEP_OTHER;
}

typedef struct {
    uint64_t count, bytes[PARTS];
    uint64_t stopped_at; /* position where the pass ended */
    step why;
} totals_t;

static void measure(const span_t *span, totals_t *t)
{
    frame_t f;
    part_t parts[PARTS];
    *t = (totals_t){.stopped_at = span->start};
    while ((t->why = next_append(span, &t->stopped_at, &f, parts)) < STEP_END) {
        if (t->why == STEP_OTHER)
            continue;
        t->count++;
        for (int i = 0; i < PARTS; i++)
            t->bytes[i] += parts[i].p ? parts[i].length : 0;
    }
}

typedef struct {
    uint8_t *seq, *ts;
    uint8_t *offsets[PARTS], *bytes[PARTS], *valid[PARTS]; /* valid[DATA]: NULL, data is always there */
} buffers_t;

static void put_part(const buffers_t *b, int part, uint64_t row, uint64_t *used, const part_t *value)
{
    if (value->p) {
        memcpy(b->bytes[part] + *used, value->p, value->length);
        *used += value->length;
        if (b->valid[part])
            b->valid[part][row / 8] |= (uint8_t)(1u << (row % 8));
    }
    put32(b->offsets[part] + 4 * (row + 1), (uint32_t)*used);
}

/* False if the frames are no longer those that were measured; never writes beyond what was. */
static bool fill(const span_t *span, const totals_t *t, const buffers_t *b)
{
    uint64_t pos = span->start, row = 0, used[PARTS] = {0};
    frame_t f;
    part_t parts[PARTS];
    for (int i = 0; i < PARTS; i++)
        put32(b->offsets[i], 0);
    for (step s; (s = next_append(span, &pos, &f, parts)) < STEP_END;) {
        if (s == STEP_OTHER)
            continue;
        if (row == t->count)
            return false;
        for (int i = 0; i < PARTS; i++)
            if (parts[i].p && parts[i].length > t->bytes[i] - used[i])
                return false;
        put64(b->seq + 8 * row, f.seq);
        put64(b->ts + 8 * row, f.ts);
        for (int i = 0; i < PARTS; i++)
            put_part(b, i, row, &used[i], &parts[i]);
        row++;
    }
    return row == t->count && memcmp(used, t->bytes, sizeof used) == 0;
}

/* What the pass without exceptions found wrong, said properly. */
static PyObject *explain(const span_t *span, uint64_t pos)
{
    frame_t f;
    const uint8_t *p = span->base + pos;
    frame_fault fault = frame_parse(p, span->end - pos, &f);
    if (fault != FRAME_OK)
        return refuse_frame("format_error", "frame at offset", pos, p, span->end - pos, fault);
    return refuse("format_error", "frame at offset %llu: data of %u bytes is too short for its meta",
                  (unsigned long long)pos, f.data_len);
}

/* A new bytes object as the tuple's next item; its memory in *memory. */
static bool add_bytes(PyObject *tuple, Py_ssize_t *next, uint64_t size, uint8_t **memory)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!bytes)
        return false;
    *memory = (uint8_t *)PyBytes_AS_STRING(bytes);
    PyTuple_SET_ITEM(tuple, (*next)++, bytes);
    return true;
}

/* A Columns with its buffers allocated, in the order of its fields. */
static PyObject *new_columns(PyTypeObject *type, const totals_t *t, buffers_t *b)
{
    PyObject *columns = type->tp_alloc(type, 14), *count = columns ? PyLong_FromUnsignedLongLong(t->count) : NULL;
    Py_ssize_t next = 0;
    bool good = count;
    if (good)
        PyTuple_SET_ITEM(columns, next++, count);
    good = good && add_bytes(columns, &next, 8 * t->count, &b->seq) && add_bytes(columns, &next, 8 * t->count, &b->ts);
    for (int i = 0; good && i < PARTS; i++) {
        uint64_t bits = (t->count + 7) / 8;
        b->valid[i] = NULL;
        good = add_bytes(columns, &next, 4 * (t->count + 1), &b->offsets[i]) &&
               add_bytes(columns, &next, t->bytes[i], &b->bytes[i]) &&
               (i == DATA || add_bytes(columns, &next, bits, &b->valid[i]));
        if (good && i != DATA)
            memset(b->valid[i], 0, bits);
    }
    if (!good)
        Py_CLEAR(columns);
    return columns;
}

static bool totals_fit(const span_t *span, const totals_t *t)
{
    if (t->why == STEP_BAD) {
        explain(span, t->stopped_at);
        return false;
    }
    for (int i = 0; i < PARTS; i++)
        if (t->bytes[i] > INT32_MAX) {
            refuse("invalid_request", "a column of %llu bytes is beyond int32 offsets",
                   (unsigned long long)t->bytes[i]);
            return false;
        }
    return true;
}

/* columns(buf, start, end) */
CORE_FUNCTION(core_columns)
{
    core_state *state = PyModule_GetState(module);
    span_t span;
    totals_t totals;
    buffers_t buffers;
    bool filled = false;
    if (!take_count("columns", nargs, 3) || !span_open(&span, args, false))
        return NULL;
    PyThreadState *away = span.end - span.start > GIL_FREE_BYTES ? PyEval_SaveThread() : NULL;
    measure(&span, &totals);
    if (away)
        PyEval_RestoreThread(away);
    PyObject *columns = totals_fit(&span, &totals) ? new_columns(state->columns, &totals, &buffers) : NULL;
    if (columns) { /* nobody else knows the new bytes objects yet, so they may be filled without the GIL */
        if (away)
            away = PyEval_SaveThread();
        filled = fill(&span, &totals, &buffers);
        if (away)
            PyEval_RestoreThread(away);
    }
    if (columns && !filled) {
        Py_CLEAR(columns);
        refuse("format_error", "the frames changed while they were read");
    }
    span_close(&span);
    return columns;
}
