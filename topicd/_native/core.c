/* The native core: module, argument checks, shared words and ring copies. Contract: interface.py. */
#include "core.h"

/* ---- refusals ---- */

PyObject *refuse(const char *code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyObject *message = PyUnicode_FromFormatV(format, values);
    va_end(values);
    PyObject *both = message ? Py_BuildValue("(sN)", code, message) : NULL;
    if (both) {
        PyErr_SetObject(PyExc_ValueError, both); /* a tuple becomes the exception's args */
        Py_DECREF(both);
    }
    return NULL;
}

PyObject *refuse_frame(const char *code, const char *subject, uint64_t n, const uint8_t *p, uint64_t left,
                       frame_fault fault)
{
    typedef unsigned long long ull; /* PyUnicode_FromFormat knows no PRIu64 */
    uint64_t size = left < LEN_FIELD ? 0 : (uint64_t)LEN_FIELD + get32(p);
    switch (fault) {
    case FRAME_SHORT:
        return refuse(code, "%s %llu: %llu bytes remain, a frame has at least %u", subject, (ull)n, (ull)left,
                      FRAME_OVERHEAD);
    case FRAME_SMALL:
        return refuse(code, "%s %llu: frame_len is %llu, at least %u is needed", subject, (ull)n,
                      (ull)(size - LEN_FIELD), MIN_FRAME_LEN);
    case FRAME_OVERRUN:
        return refuse(code, "%s %llu: a frame of %llu bytes overruns the %llu that remain", subject, (ull)n, (ull)size,
                      (ull)left);
    default:
        return refuse(code, "%s %llu: node %u, tag %u and data %u bytes do not make a frame of %llu", subject, (ull)n,
                      (unsigned)p[NODE_LEN_AT], (unsigned)get16(p + TAG_LEN_AT),
                      (unsigned)get32(p + DATA_LEN_AT), (ull)size);
    }
}

/* ---- arguments ---- */

bool take_count(const char *function, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments but %zd were given", function, wanted, given);
    return false;
}

bool take_u64(PyObject *value, const char *name, uint64_t *out)
{
    *out = PyLong_AsUnsignedLongLong(value);
    if (*out != UINT64_MAX || !PyErr_Occurred())
        return true;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        refuse("invalid_request", "%s is outside 0 to 18446744073709551615", name);
    }
    return false;
}

bool take_buffer(PyObject *buffer, bool writable, Py_buffer *view)
{
    if (PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE) < 0)
        return false;
    if (!writable || !view->readonly)
        return true;
    PyBuffer_Release(view);
    refuse("invalid_request", "the buffer is read-only");
    return false;
}

bool span_open(span_t *span, PyObject *const *args, bool writable)
{
    if (!take_buffer(args[0], writable, &span->view))
        return false;
    span->base = span->view.buf;
    if (!take_u64(args[1], "start", &span->start) || !take_u64(args[2], "end", &span->end))
        goto failed;
    if (span->start > span->end || span->end > (uint64_t)span->view.len) {
        refuse("invalid_request", "range %llu to %llu is outside a buffer of %zd bytes",
               (unsigned long long)span->start, (unsigned long long)span->end, span->view.len);
        goto failed;
    }
    return true;
failed:
    span_close(span);
    return false;
}

/* ---- shared words ---- */

/* The word at memory[offset]; NULL with an exception set. An unaligned word could tear, so it is refused. */
static uint64_t *take_word(PyObject *const *args, bool writable, Py_buffer *view)
{
    uint64_t offset;
    if (!take_buffer(args[0], writable, view))
        return NULL;
    if (!take_u64(args[1], "offset", &offset))
        goto failed;
    if (view->len < 8 || offset > (uint64_t)view->len - 8 || ((uintptr_t)view->buf + offset) % 8 != 0) {
        refuse("invalid_request", "no aligned word at offset %llu of %zd bytes", (unsigned long long)offset, view->len);
        goto failed;
    }
    return (uint64_t *)((uint8_t *)view->buf + offset);
failed:
    PyBuffer_Release(view);
    return NULL;
}

static PyObject *load_word(const char *name, PyObject *const *args, Py_ssize_t nargs, bool fence)
{
    Py_buffer view;
    uint64_t *word;
    if (!take_count(name, nargs, 2) || !(word = take_word(args, false, &view)))
        return NULL;
    if (fence)
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *store_word(const char *name, PyObject *const *args, Py_ssize_t nargs, bool fence)
{
    Py_buffer view;
    uint64_t *word, value;
    if (!take_count(name, nargs, 3) || !(word = take_word(args, true, &view)))
        return NULL;
    if (!take_u64(args[2], "value", &value)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    if (fence)
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static CORE_FUNCTION(core_load) { (void)module; return load_word("load", args, nargs, false); }
static CORE_FUNCTION(core_fence_load) { (void)module; return load_word("fence_load", args, nargs, true); }
static CORE_FUNCTION(core_store) { (void)module; return store_word("store", args, nargs, false); }
static CORE_FUNCTION(core_store_fence) { (void)module; return store_word("store_fence", args, nargs, true); }

/* ---- ring ---- */

static bool ring_fits(uint64_t memory, uint64_t body_at, uint64_t capacity, uint64_t head, uint64_t n)
{
    typedef unsigned long long ull;
    if (capacity == 0 || body_at > memory || capacity > memory - body_at)
        refuse("invalid_request", "a ring of %llu bytes at %llu is outside a memory of %llu bytes", (ull)capacity,
               (ull)body_at, (ull)memory);
    else if (n > capacity)
        refuse("invalid_request", "%llu bytes exceed a ring of %llu", (ull)n, (ull)capacity);
    else if (head > UINT64_MAX - n)
        refuse("invalid_request", "head %llu would overflow", (ull)head);
    else
        return true;
    return false;
}

/* ring_write(memory, body_at, capacity, head, data, start, end) -> new head */
static CORE_FUNCTION(core_ring_write)
{
    (void)module;
    Py_buffer memory;
    span_t data;
    uint64_t body_at, capacity, head;
    if (!take_count("ring_write", nargs, 7) || !take_buffer(args[0], true, &memory))
        return NULL;
    if (!take_u64(args[1], "body_at", &body_at) || !take_u64(args[2], "capacity", &capacity) ||
        !take_u64(args[3], "head", &head) || !span_open(&data, args + 4, false)) {
        PyBuffer_Release(&memory);
        return NULL;
    }
    uint64_t n = data.end - data.start;
    bool fits = ring_fits((uint64_t)memory.len, body_at, capacity, head, n);
    if (fits) {
        uint8_t *body = (uint8_t *)memory.buf + body_at;
        uint64_t at = head % capacity, first = n < capacity - at ? n : capacity - at;
        /* memmove: nothing forbids data to be a part of the same mapping. */
        memmove(body + at, data.base + data.start, first);
        memmove(body, data.base + data.start + first, n - first);
    }
    span_close(&data);
    PyBuffer_Release(&memory);
    return fits ? PyLong_FromUnsignedLongLong(head + n) : NULL;
}

/* ---- module ---- */

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))core_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(load), METHOD(store), METHOD(store_fence), METHOD(fence_load), METHOD(ring_write),
    METHOD(xxh3_64), METHOD(encode_batch), METHOD(encode_columns), METHOD(stamp_frames), METHOD(stamp_copies), METHOD(copy_frames), METHOD(scan_frames), METHOD(frame_offsets),
    METHOD(index_entries), METHOD(frame_tags), METHOD(select_frames), METHOD(decode_frames), METHOD(payloads),
    METHOD(columns), METHOD(take_run), METHOD(run_answers), METHOD(run_chains), METHOD(commit), METHOD(look), METHOD(guard), METHOD(keep_orphans), METHOD(send_each), METHOD(exchange), METHOD(claim_next),
    METHOD(crc32), METHOD(message_head), METHOD(measure_messages), METHOD(encode_messages), METHOD(send_message),
    METHOD(split_messages), METHOD(scan_messages), METHOD(find_message), METHOD(publish), METHOD(signal_count), METHOD(raise_signal),
    METHOD(await_signal), METHOD(reserve), {NULL, NULL, 0, NULL},
};

/* Results are filled in without calling the class, so its shape is checked once here. */
static bool borrow_type(PyObject *interface, const char *name, Py_ssize_t fields, PyTypeObject **out)
{
    PyObject *type = PyObject_GetAttrString(interface, name);
    PyObject *names = type ? PyObject_GetAttrString(type, "_fields") : NULL;
    bool good = names && PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type) &&
                PyTuple_Check(names) && PyTuple_GET_SIZE(names) == fields;
    if (!good && !PyErr_Occurred())
        PyErr_Format(PyExc_ImportError, "interface.%s does not have %zd fields", name, fields);
    Py_XDECREF(names);
    *out = (PyTypeObject *)type;
    return good;
}

static int add_limits(PyObject *module)
{
    const struct { const char *name; long long value; } limits[] = {
        {"MAX_DATA_AND_META", MAX_DATA_AND_META}, {"MAX_TAG", MAX_TAG},
        {"MAX_NODE", MAX_NODE}, {"MAX_META", MAX_META},
        {"MAX_META_KEYS", MAX_META_KEYS}, {"MAX_BATCH_RECORDS", MAX_BATCH_RECORDS},
        {"MAX_BATCH_BYTES", MAX_BATCH_BYTES}, {"FRAME_HEADER", FRAME_HEADER},
        {"FRAME_CHECKSUM", FRAME_CHECKSUM}, {"FRAME_OVERHEAD", FRAME_OVERHEAD},
        {"MAX_SEQ", MAX_SEQ}, {"MAX_META_DEPTH", MAX_META_DEPTH},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        PyObject *value = PyLong_FromLongLong(limits[i].value);
        int failed = value ? PyModule_AddObjectRef(module, limits[i].name, value) : -1;
        Py_XDECREF(value);
        if (failed < 0)
            return -1;
    }
    return PyModule_AddStringConstant(module, "name", "native");
}

static int core_exec(PyObject *module)
{
    core_state *state = PyModule_GetState(module);
    PyObject *interface = PyImport_ImportModule("topicd._native.interface");
    bool good = interface && borrow_type(interface, "Run", 10, &state->run) &&
                borrow_type(interface, "Scan", 3, &state->scan) &&
                borrow_type(interface, "Selection", 5, &state->selection) &&
                borrow_type(interface, "Columns", 14, &state->columns) &&
                borrow_type(interface, "MakeDir", 1, &state->make_dir) &&
                borrow_type(interface, "Put", 5, &state->put) &&
                borrow_type(interface, "SyncDir", 1, &state->sync_dir) &&
                borrow_type(interface, "Rename", 2, &state->rename);
    Py_XDECREF(interface);
    return good ? add_limits(module) : -1;
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    core_state *state = PyModule_GetState(module);
    Py_VISIT(state->run);
    Py_VISIT(state->scan);
    Py_VISIT(state->selection);
    Py_VISIT(state->columns);
    Py_VISIT(state->make_dir);
    Py_VISIT(state->put);
    Py_VISIT(state->sync_dir);
    Py_VISIT(state->rename);
    return 0;
}

static int core_clear(PyObject *module)
{
    core_state *state = PyModule_GetState(module);
    Py_CLEAR(state->run);
    Py_CLEAR(state->scan);
    Py_CLEAR(state->selection);
    Py_CLEAR(state->columns);
    Py_CLEAR(state->make_dir);
    Py_CLEAR(state->put);
    Py_CLEAR(state->sync_dir);
    Py_CLEAR(state->rename);
    return 0;
}

static void core_free(void *module) { core_clear(module); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, core_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "Ordering between processes and per-record work, in C. Contract: topicd._native.interface.Core.",
    .m_size = sizeof(core_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
