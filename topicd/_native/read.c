/* Trusted frames on their way out: lengths are checked, checksums are not. Frames other than appends are passed over
 * by everything but frame_offsets. */
#include "core.h"

static bool is_append(const frame_t *f) { return f->type == TYPE_APPEND; }

/* How many frames the span holds (appends only, or all); -1 with an exception set. */
static Py_ssize_t count_frames(const span_t *span, bool appends_only)
{
    Py_ssize_t count = 0;
    uint64_t pos = span->start;
    frame_t f;
    while (span_next(span, &pos, &f))
        count += !appends_only || is_append(&f);
    return PyErr_Occurred() ? -1 : count;
}

/* frame_offsets and index_entries write one fixed-size entry per frame. */
typedef void (*put_entry)(uint8_t *to, const frame_t *f, uint64_t offset);

static void put_offset(uint8_t *to, const frame_t *f, uint64_t offset)
{
    (void)f;
    put32(to, (uint32_t)offset);
}

static void put_index_entry(uint8_t *to, const frame_t *f, uint64_t offset)
{
    put32(to, (uint32_t)offset);
    put32(to + 4, (uint32_t)f->size);
    put64(to + 8, f->ts);
    put32(to + 16, f->flags); /* u8 and three bytes of padding */
}

static PyObject *entries(const span_t *span, uint64_t base, bool appends_only, size_t entry_size, put_entry put)
{
    if (span->end - span->start > UINT32_MAX || base > UINT32_MAX - (span->end - span->start))
        return refuse("invalid_request", "%llu bytes at offset %llu are beyond u32 offsets",
                      (unsigned long long)(span->end - span->start), (unsigned long long)base);
    Py_ssize_t count = count_frames(span, appends_only);
    PyObject *out = count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)entry_size);
    if (!out)
        return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(out), *end = to + (size_t)count * entry_size;
    uint64_t pos = span->start;
    frame_t f;
    while (to < end && span_next(span, &pos, &f))
        if (!appends_only || is_append(&f)) {
            put(to, &f, base + (pos - f.size - span->start));
            to += entry_size;
        }
    if (to == end)
        return out;
    Py_DECREF(out);
    return PyErr_Occurred() ? NULL : refuse("format_error", "the frames changed while they were read");
}

/* frame_offsets(buf, start, end) */
CORE_FUNCTION(core_frame_offsets)
{
    (void)module;
    span_t span;
    if (!take_count("frame_offsets", nargs, 3) || !span_open(&span, args, false))
        return NULL;
    PyObject *out = entries(&span, 0, false, 4, put_offset);
    span_close(&span);
    return out;
}

/* index_entries(buf, start, end, base) */
CORE_FUNCTION(core_index_entries)
{
    (void)module;
    span_t span;
    uint64_t base;
    if (!take_count("index_entries", nargs, 4) || !span_open(&span, args, false))
        return NULL;
    PyObject *out = take_u64(args[3], "base", &base) ? entries(&span, base, true, 20, put_index_entry) : NULL;
    span_close(&span);
    return out;
}

/* ---- lists of one object per append frame ---- */

static PyObject *bytes_of(const uint8_t *p, uint32_t length)
{
    return PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)length);
}

/* Neighbouring records often share tag and node: an equal neighbour's object is used again. Owns *last. */
static PyObject *shared_bytes(PyObject **last, bool present, const uint8_t *p, uint32_t length)
{
    if (!present)
        return Py_NewRef(Py_None);
    if (!*last || PyBytes_GET_SIZE(*last) != (Py_ssize_t)length || memcmp(PyBytes_AS_STRING(*last), p, length) != 0) {
        PyObject *fresh = bytes_of(p, length);
        if (!fresh)
            return NULL;
        Py_XSETREF(*last, fresh);
    }
    return Py_NewRef(*last);
}

/* Steals the items; NULL if one is NULL. A tuple of atoms is of no interest to the garbage collector, and a list of
 * a million tracked ones would make each of its passes slow. */
static PyObject *plain_tuple(PyObject **items, Py_ssize_t count)
{
    bool whole = true;
    for (Py_ssize_t i = 0; i < count; i++)
        whole = whole && items[i];
    PyObject *tuple = whole ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (tuple)
            PyTuple_SET_ITEM(tuple, i, items[i]);
        else
            Py_XDECREF(items[i]);
    if (tuple)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

typedef struct {
    PyObject *tag, *node; /* of the neighbour before, or NULL */
} memory_t;

/* The object for one frame; NULL without an exception: none for this frame. */
typedef PyObject *(*make_item)(const frame_t *f, uint64_t pos, memory_t *memory);

static PyObject *refuse_body(const frame_t *f, uint64_t pos)
{
    return refuse("format_error", "frame at offset %llu: data of %u bytes is too short for its meta",
                  (unsigned long long)pos, f->data_len);
}

static PyObject *make_tag(const frame_t *f, uint64_t pos, memory_t *memory)
{
    (void)pos;
    if (!(f->flags & FLAG_TAG))
        return NULL;
    PyObject *items[] = {shared_bytes(&memory->tag, true, frame_tag(f), f->tag_len),
                         PyLong_FromUnsignedLongLong(f->seq)};
    return plain_tuple(items, 2);
}

static PyObject *make_payload(const frame_t *f, uint64_t pos, memory_t *memory)
{
    (void)memory;
    body_t body;
    return frame_body(f, &body) ? bytes_of(body.payload, body.payload_len) : refuse_body(f, pos);
}

static PyObject *make_decoded(const frame_t *f, uint64_t pos, memory_t *memory)
{
    body_t body;
    if (!frame_body(f, &body))
        return refuse_body(f, pos);
    PyObject *items[] = {
        PyLong_FromUnsignedLongLong(f->seq),
        PyLong_FromUnsignedLongLong(f->ts),
        shared_bytes(&memory->node, f->flags & FLAG_NODE, frame_node(f), f->node_len),
        shared_bytes(&memory->tag, f->flags & FLAG_TAG, frame_tag(f), f->tag_len),
        body.meta ? bytes_of(body.meta, body.meta_len) : Py_NewRef(Py_None),
        bytes_of(body.payload, body.payload_len),
    };
    return plain_tuple(items, 6);
}

static bool append_items(PyObject *list, const span_t *span, make_item make)
{
    memory_t memory = {NULL, NULL};
    uint64_t pos = span->start;
    bool good = true;
    frame_t f;
    while (good && span_next(span, &pos, &f)) {
        PyObject *item = is_append(&f) ? make(&f, pos - f.size, &memory) : NULL;
        if (item) {
            good = PyList_Append(list, item) == 0;
            Py_DECREF(item);
        } else
            good = !PyErr_Occurred();
    }
    Py_XDECREF(memory.tag);
    Py_XDECREF(memory.node);
    return good && !PyErr_Occurred();
}

static PyObject *items(const char *name, PyObject *const *args, Py_ssize_t nargs, make_item make)
{
    span_t span;
    if (!take_count(name, nargs, 3) || !span_open(&span, args, false))
        return NULL;
    PyObject *list = PyList_New(0);
    if (list && !append_items(list, &span, make))
        Py_CLEAR(list);
    span_close(&span);
    return list;
}

CORE_FUNCTION(core_frame_tags) { (void)module; return items("frame_tags", args, nargs, make_tag); }
CORE_FUNCTION(core_decode_frames) { (void)module; return items("decode_frames", args, nargs, make_decoded); }
CORE_FUNCTION(core_payloads) { (void)module; return items("payloads", args, nargs, make_payload); }

/* ---- select ---- */

typedef struct {
    uint64_t after_seq, up_to_seq, limit, max_bytes, min_ts;
    PyObject *tag_eq, *tag_prefix; /* borrowed bytes, or NULL */
    PyObject *nodes;               /* owned tuple of bytes */
    Py_buffer dead;                /* u64 pairs [first, last], ascending */
} filter_t;

static bool take_bytes(PyObject *value, const char *name, PyObject **out)
{
    *out = value == Py_None ? NULL : value;
    if (!*out || PyBytes_Check(value))
        return true;
    PyErr_Format(PyExc_TypeError, "%s must be bytes or None, not %s", name, Py_TYPE(value)->tp_name);
    return false;
}

static bool take_nodes(PyObject *value, PyObject **out)
{
    *out = PySequence_Tuple(value);
    for (Py_ssize_t i = 0; *out && i < PyTuple_GET_SIZE(*out); i++)
        if (!PyBytes_Check(PyTuple_GET_ITEM(*out, i))) {
            PyErr_SetString(PyExc_TypeError, "nodes must be bytes");
            Py_CLEAR(*out);
        }
    return *out;
}

static bool take_dead(PyObject *value, Py_buffer *dead)
{
    if (!take_buffer(value, false, dead))
        return false;
    if (dead->len % 16 == 0)
        return true;
    refuse("invalid_request", "dead has %zd bytes, not a multiple of 16", dead->len);
    PyBuffer_Release(dead);
    return false;
}

/* args: after_seq, up_to_seq, limit, max_bytes, min_ts, tag_eq, tag_prefix, nodes, dead */
static bool filter_open(filter_t *w, PyObject *const *args)
{
    if (!take_u64(args[0], "after_seq", &w->after_seq) || !take_u64(args[1], "up_to_seq", &w->up_to_seq) ||
        !take_u64(args[2], "limit", &w->limit) || !take_u64(args[3], "max_bytes", &w->max_bytes) ||
        !take_u64(args[4], "min_ts", &w->min_ts) || !take_bytes(args[5], "tag_eq", &w->tag_eq) ||
        !take_bytes(args[6], "tag_prefix", &w->tag_prefix) || !take_nodes(args[7], &w->nodes))
        return false;
    if (take_dead(args[8], &w->dead))
        return true;
    Py_DECREF(w->nodes);
    return false;
}

static void filter_close(filter_t *w)
{
    Py_DECREF(w->nodes);
    PyBuffer_Release(&w->dead);
}

static bool is_dead(const Py_buffer *dead, uint64_t seq)
{
    const uint8_t *pairs = dead->buf;
    uint64_t low = 0, high = (uint64_t)dead->len / 16, count = high;
    while (low < high) { /* the first pair whose last is not below seq */
        uint64_t middle = (low + high) / 2;
        if (get64(pairs + middle * 16 + 8) < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && get64(pairs + low * 16) <= seq;
}

static bool tag_passes(const filter_t *w, const frame_t *f)
{
    if (!w->tag_eq && !w->tag_prefix)
        return true;
    if (!(f->flags & FLAG_TAG))
        return false;
    const uint8_t *tag = frame_tag(f);
    if (w->tag_eq && (PyBytes_GET_SIZE(w->tag_eq) != (Py_ssize_t)f->tag_len ||
                      memcmp(PyBytes_AS_STRING(w->tag_eq), tag, f->tag_len) != 0))
        return false;
    Py_ssize_t prefix = w->tag_prefix ? PyBytes_GET_SIZE(w->tag_prefix) : 0;
    return prefix <= (Py_ssize_t)f->tag_len &&
           (!prefix || memcmp(PyBytes_AS_STRING(w->tag_prefix), tag, (size_t)prefix) == 0);
}

static bool node_passes(const filter_t *w, const frame_t *f)
{
    if (!(f->flags & FLAG_NODE))
        return true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(w->nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(w->nodes, i);
        if (PyBytes_GET_SIZE(node) == (Py_ssize_t)f->node_len &&
            memcmp(PyBytes_AS_STRING(node), frame_node(f), f->node_len) == 0)
            return false;
    }
    return true;
}

static bool passes(const filter_t *w, const frame_t *f)
{
    return f->ts >= w->min_ts && tag_passes(w, f) && node_passes(w, f) && (!w->dead.len || !is_dead(&w->dead, f->seq));
}

static bool add_range(PyObject *ranges, uint64_t start, uint64_t end)
{
    PyObject *range = Py_BuildValue("(KK)", (unsigned long long)start, (unsigned long long)end);
    int failed = range ? PyList_Append(ranges, range) : -1;
    Py_XDECREF(range);
    return failed == 0;
}

typedef struct {
    uint64_t count, bytes, last_seq, examined, end, range_start, range_end;
} choice_t;

/* False with an exception set. */
static bool choose(choice_t *c, PyObject *ranges, uint64_t pos, const frame_t *f)
{
    if (c->count && c->range_end != pos && !add_range(ranges, c->range_start, c->range_end))
        return false;
    if (!c->count || c->range_end != pos)
        c->range_start = pos;
    c->range_end = pos + f->size;
    c->count++;
    c->bytes += f->size;
    return true;
}

static bool is_full(const filter_t *w, const choice_t *c, const frame_t *f)
{
    return c->count && (c->count >= w->limit || c->bytes + f->size > w->max_bytes);
}

/* c->end stands behind the last frame passed over or examined; false with an exception set. */
static bool select_from(const span_t *span, const filter_t *w, choice_t *c, PyObject *ranges)
{
    uint64_t next = c->end = span->start;
    frame_t f;
    for (; span_next(span, &next, &f); c->end = next) {
        if (!is_append(&f) || f.seq <= w->after_seq)
            continue;
        if (f.seq > w->up_to_seq)
            break; /* seqs ascend */
        if (passes(w, &f)) {
            if (is_full(w, c, &f))
                break;
            if (!choose(c, ranges, c->end, &f))
                return false;
        }
        c->last_seq = f.seq;
        c->examined++;
    }
    return !PyErr_Occurred() && (!c->count || add_range(ranges, c->range_start, c->range_end));
}

/* select_frames(buf, start, end, after_seq, up_to_seq, limit, max_bytes, min_ts, tag_eq, tag_prefix, nodes, dead) */
CORE_FUNCTION(core_select_frames)
{
    typedef unsigned long long ull;
    core_state *state = PyModule_GetState(module);
    span_t span;
    filter_t filter;
    choice_t c = {0};
    if (!take_count("select_frames", nargs, 12) || !span_open(&span, args, false))
        return NULL;
    PyObject *selection = NULL, *ranges = NULL;
    if (filter_open(&filter, args + 3)) {
        ranges = PyList_New(0);
        if (ranges && select_from(&span, &filter, &c, ranges))
            selection = PyObject_CallFunction((PyObject *)state->selection, "OKKKK", ranges, (ull)c.count,
                                              (ull)c.last_seq, (ull)c.examined, (ull)c.end);
        Py_XDECREF(ranges);
        filter_close(&filter);
    }
    span_close(&span);
    return selection;
}
