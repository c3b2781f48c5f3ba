/* Checksums, and the scan that decides which stored bytes are believed. */
#include "core.h"
#include "checksum.h"

/* xxh3_64(data, seed=0) */
CORE_FUNCTION(core_xxh3_64)
{
    (void)module;
    Py_buffer view;
    uint64_t seed = 0, sum;
    if (nargs != 1 && !take_count("xxh3_64", nargs, 2))
        return NULL;
    if (!take_buffer(args[0], false, &view))
        return NULL;
    if (nargs == 2 && !take_u64(args[1], "seed", &seed)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (view.len > (Py_ssize_t)GIL_FREE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        sum = XXH3_64bits_withSeed(view.buf, (size_t)view.len, seed);
        Py_END_ALLOW_THREADS
    } else
        sum = XXH3_64bits_withSeed(view.buf, (size_t)view.len, seed);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(sum);
}

typedef struct {
    uint64_t start, end, type, topic_id, first_seq, count, first_ts, last_ts, whole_end, whole_count;
} run_t;

#define RUN_FIELDS (sizeof(run_t) / sizeof(uint64_t))

typedef struct {
    run_t *runs;
    size_t count, room;
    uint64_t end;
    const char *problem; /* NULL: out of memory */
} scan_t;

static run_t *new_run(scan_t *scan)
{
    if (scan->count == scan->room) {
        size_t room = scan->room ? scan->room * 2 : 16;
        run_t *grown = PyMem_RawRealloc(scan->runs, room * sizeof *grown); /* Raw: the GIL may be away */
        if (!grown)
            return NULL;
        scan->runs = grown;
        scan->room = room;
    }
    return &scan->runs[scan->count++];
}

static bool extends(const run_t *run, const frame_t *f)
{
    /* By distance, not by sum: a seq of 2**64-1 has no successor. */
    return run->type == TYPE_APPEND && f->type == TYPE_APPEND && f->topic_id == run->topic_id &&
           f->seq > run->first_seq && f->seq - run->first_seq == run->count;
}

static bool note_frame(scan_t *scan, const frame_t *f, uint64_t pos)
{
    run_t *run = scan->count ? &scan->runs[scan->count - 1] : NULL;
    if (!run || !extends(run, f)) {
        if (!(run = new_run(scan)))
            return false;
        *run = (run_t){.start = pos, .type = f->type, .topic_id = f->topic_id, .first_seq = f->seq,
                       .first_ts = f->ts, .whole_end = pos};
    }
    run->end = pos + f->size;
    run->count++;
    run->last_ts = f->ts;
    if (!(f->flags & FLAG_MORE)) {
        run->whole_end = run->end;
        run->whole_count = run->count;
    }
    return true;
}

static const char *frame_problem(const uint8_t *p, uint64_t left, frame_t *f)
{
    frame_fault fault = frame_parse(p, left, f);
    if (fault == FRAME_SHORT || fault == FRAME_OVERRUN)
        return "torn";
    if (fault != FRAME_OK || f->type < TYPE_APPEND || f->type > TYPE_LAST)
        return "layout";
    return frame_checksum(f->at, f->size) == get64(frame_sum(f)) ? "" : "checksum";
}

/* Runs without the GIL: touches no Python object. */
static void scan(scan_t *scan, const uint8_t *base, uint64_t start, uint64_t end)
{
    frame_t f;
    scan->problem = "";
    for (scan->end = start; scan->end < end; scan->end += f.size) {
        scan->problem = frame_problem(base + scan->end, end - scan->end, &f);
        if (*scan->problem)
            return;
        if (!note_frame(scan, &f, scan->end)) {
            scan->problem = NULL;
            return;
        }
    }
}

/* Fills the tuple itself: ten times quicker than calling the NamedTuple. */
static PyObject *run_object(PyTypeObject *type, const run_t *run)
{
    uint64_t fields[RUN_FIELDS];
    memcpy(fields, run, sizeof fields);
    PyObject *tuple = type->tp_alloc(type, RUN_FIELDS);
    for (size_t i = 0; tuple && i < RUN_FIELDS; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(fields[i]);
        if (!value)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, value);
    }
    return tuple;
}

static PyObject *run_list(PyTypeObject *type, const scan_t *scan)
{
    PyObject *list = PyList_New((Py_ssize_t)scan->count);
    for (size_t i = 0; list && i < scan->count; i++) {
        PyObject *run = run_object(type, &scan->runs[i]);
        if (!run)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, run);
    }
    return list;
}

static PyObject *scan_object(core_state *state, const scan_t *scan)
{
    if (!scan->problem)
        return PyErr_NoMemory();
    PyObject *runs = run_list(state->run, scan);
    return runs ? PyObject_CallFunction((PyObject *)state->scan, "NKs", runs, (unsigned long long)scan->end,
                                        scan->problem)
                : NULL;
}

/* scan_frames(buf, start, end) */
CORE_FUNCTION(core_scan_frames)
{
    span_t span;
    scan_t result = {0};
    if (!take_count("scan_frames", nargs, 3) || !span_open(&span, args, false))
        return NULL;
    if (span.end - span.start > GIL_FREE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        scan(&result, span.base, span.start, span.end);
        Py_END_ALLOW_THREADS
    } else
        scan(&result, span.base, span.start, span.end);
    span_close(&span);
    PyObject *object = scan_object(PyModule_GetState(module), &result);
    PyMem_RawFree(result.runs);
    return object;
}
