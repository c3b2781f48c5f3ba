/* Records on their way from topic to topic: what a router makes of them, but for what stamping fills in. */
#include "core.h"

typedef struct {
    uint8_t most; /* hops */
    bool node, tag;
} keep_t;

static inline bool goes_on(const frame_t *f, const keep_t *keep)
{
    return f->type == TYPE_APPEND && f->hops < keep->most;
}

static inline uint64_t size_of_copy(const frame_t *f, const keep_t *keep)
{
    return f->size - (keep->node ? 0 : f->node_len) - (keep->tag ? 0 : f->tag_len);
}

static uint8_t *put_copy(uint8_t *p, const frame_t *f, const keep_t *keep)
{
    uint32_t node_len = keep->node ? f->node_len : 0, tag_len = keep->tag ? f->tag_len : 0;
    uint64_t size = size_of_copy(f, keep);
    memcpy(p, f->at, FRAME_HEADER);
    put32(p, (uint32_t)(size - LEN_FIELD));
    p[FLAGS_AT] = (uint8_t)((f->flags & FLAG_META) | (node_len ? FLAG_NODE : 0) | (tag_len ? FLAG_TAG : 0) | FLAG_MORE);
    p[NODE_LEN_AT] = (uint8_t)node_len;
    p[HOPS_AT] = (uint8_t)(f->hops + 1);
    put16(p + TAG_LEN_AT, (uint16_t)tag_len);
    memcpy(p + FRAME_HEADER, frame_node(f), node_len);
    memcpy(p + FRAME_HEADER + node_len, frame_tag(f), tag_len);
    memcpy(p + FRAME_HEADER + node_len + tag_len, frame_data(f), f->data_len);
    memset(p + size - FRAME_CHECKSUM, 0, FRAME_CHECKSUM);
    return p + size;
}

/* copy_frames(buf, start, end, most_hops, keep_node, keep_tag) -> bytearray */
CORE_FUNCTION(core_copy_frames)
{
    (void)module;
    span_t span;
    uint64_t most, pos, total = 0;
    frame_t f;
    PyObject *out = NULL;
    if (!take_count("copy_frames", nargs, 6) || !span_open(&span, args, false))
        return NULL;
    int node = PyObject_IsTrue(args[4]), tag = PyObject_IsTrue(args[5]);
    if (node < 0 || tag < 0 || !take_u64(args[3], "most_hops", &most))
        goto done;
    keep_t keep = {(uint8_t)(most < UINT8_MAX ? most : UINT8_MAX), node, tag};
    pos = span.start;
    while (span_next(&span, &pos, &f))
        total += goes_on(&f, &keep) ? size_of_copy(&f, &keep) : 0;
    if (PyErr_Occurred() || !(out = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)total)))
        goto done;
    uint8_t *begin = (uint8_t *)PyByteArray_AS_STRING(out), *p = begin, *last = NULL;
    pos = span.start;
    /* The memory may have changed meanwhile: what would not fit any more is left out, and the result is refused later. */
    while (span_next(&span, &pos, &f) && p + (goes_on(&f, &keep) ? size_of_copy(&f, &keep) : 0) <= begin + total)
        if (goes_on(&f, &keep)) {
            last = p;
            p = put_copy(p, &f, &keep);
        }
    if (last)
        last[FLAGS_AT] &= (uint8_t)~FLAG_MORE;
    if (PyErr_Occurred())
        Py_CLEAR(out);
done:
    span_close(&span);
    return out;
}
