/* What the files of the native core share: the frame layout, argument checks, refusals.
 *
 * Frame, little-endian, unaligned (docs/formats.md):
 *
 *    0 u32 frame_len   bytes after this field
 *    4 u8  type        1 append .. 14 producer
 *    5 u8  flags       1 tag, 2 node, 4 durable, 8 more, 16 meta
 *    6 u64 topic_id
 *   14 u64 seq
 *   22 u64 ts
 *   30 u8  node_len
 *   31 u8  hops        how often routers have copied it on
 *   32 u16 tag_len
 *   34 u32 data_len    with META: u16 meta_len, msgpack map, payload
 *   38 node, tag, data
 *    . u64 xxh3_64     of everything from offset 4 to here
 *
 * A header is read once into a frame_t and only that copy is believed, so memory that changes underneath (shared
 * mappings, threads while the GIL is released) can give wrong answers but never a wild access.
 */
#ifndef TOPICD_CORE_H
#define TOPICD_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native core is for little-endian machines; the pure-Python twin serves elsewhere"
#endif

/* topicd.limits; a unit test compares them. */
#define MAX_DATA_AND_META (1u << 20)
#define MAX_TAG 256u
#define MAX_NODE 128u
#define MAX_META (16u << 10)
#define MAX_META_KEYS 64u
#define MAX_META_DEPTH 16u
#define MAX_BATCH_RECORDS 10000u
#define MAX_BATCH_BYTES (64u << 20)
#define FRAME_HEADER 38u
#define FRAME_CHECKSUM 8u
#define FRAME_OVERHEAD (FRAME_HEADER + FRAME_CHECKSUM)
#define MAX_SEQ INT64_MAX
#define MAX_STAMP 2048u

#define LEN_FIELD 4u
#define MIN_FRAME_LEN (FRAME_OVERHEAD - LEN_FIELD)
#define TYPE_AT 4u
#define FLAGS_AT 5u
#define TOPIC_AT 6u
#define SEQ_AT 14u
#define TS_AT 22u
#define NODE_LEN_AT 30u
#define HOPS_AT 31u
#define TAG_LEN_AT 32u
#define DATA_LEN_AT 34u

enum { TYPE_APPEND = 1, TYPE_PRODUCER = 14, TYPE_LAST = 63 };
enum { FLAG_TAG = 1, FLAG_NODE = 2, FLAG_DURABLE = 4, FLAG_MORE = 8, FLAG_META = 16, FLAGS_KNOWN = 31 };

/* Below this, giving the GIL away costs more than it gives others. */
#define GIL_FREE_BYTES (256u << 10)

typedef struct {
    PyTypeObject *run, *scan, *selection, *columns; /* the NamedTuples of interface.py */
    PyTypeObject *make_dir, *put, *sync_dir, *rename;
} core_state;

static inline uint16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }
static inline void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, sizeof v); }
static inline void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }
static inline void put64(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }

/* ---- frames ---- */

typedef struct {
    const uint8_t *at;
    uint64_t size; /* with the length field */
    uint64_t topic_id, seq, ts;
    uint32_t node_len, tag_len, data_len;
    uint8_t type, flags, hops;
} frame_t;

typedef enum { FRAME_OK, FRAME_SHORT, FRAME_SMALL, FRAME_OVERRUN, FRAME_UNEQUAL } frame_fault;

static inline const uint8_t *frame_node(const frame_t *f) { return f->at + FRAME_HEADER; }
static inline const uint8_t *frame_tag(const frame_t *f) { return frame_node(f) + f->node_len; }
static inline const uint8_t *frame_data(const frame_t *f) { return frame_tag(f) + f->tag_len; }
static inline const uint8_t *frame_sum(const frame_t *f) { return f->at + f->size - FRAME_CHECKSUM; }

/* Reads the header at p, believing nothing: on FRAME_OK every part of f lies inside the `left` bytes. */
static inline frame_fault frame_parse(const uint8_t *p, uint64_t left, frame_t *f)
{
    if (left < FRAME_HEADER)
        return FRAME_SHORT;
    f->at = p;
    f->size = (uint64_t)LEN_FIELD + get32(p);
    if (f->size < FRAME_OVERHEAD)
        return FRAME_SMALL;
    if (f->size > left)
        return FRAME_OVERRUN;
    f->type = p[TYPE_AT];
    f->flags = p[FLAGS_AT];
    f->topic_id = get64(p + TOPIC_AT);
    f->seq = get64(p + SEQ_AT);
    f->ts = get64(p + TS_AT);
    f->node_len = p[NODE_LEN_AT];
    f->hops = p[HOPS_AT];
    f->tag_len = get16(p + TAG_LEN_AT);
    f->data_len = get32(p + DATA_LEN_AT);
    uint64_t parts = (uint64_t)FRAME_OVERHEAD + f->node_len + f->tag_len + f->data_len;
    return parts == f->size ? FRAME_OK : FRAME_UNEQUAL;
}

/* Where meta and payload of an append frame lie; false if data is too short for the meta it claims. */
typedef struct {
    const uint8_t *meta, *payload; /* meta: NULL without the flag */
    uint32_t meta_len, payload_len;
} body_t;

static inline bool frame_body(const frame_t *f, body_t *b)
{
    const uint8_t *data = frame_data(f);
    *b = (body_t){NULL, data, 0, f->data_len};
    if (!(f->flags & FLAG_META))
        return true;
    if (f->data_len < 2)
        return false;
    b->meta_len = get16(data);
    if (b->meta_len > f->data_len - 2)
        return false;
    b->meta = data + 2;
    b->payload = b->meta + b->meta_len;
    b->payload_len = f->data_len - 2 - b->meta_len;
    return true;
}

/* ---- arguments and refusals (core.c) ---- */

/* Raises ValueError(code, message) and returns NULL. */
PyObject *refuse(const char *code, const char *format, ...);
/* Raises what frame_parse found; subject names the frame ("record" index, "frame at offset" n). */
PyObject *refuse_frame(const char *code, const char *subject, uint64_t n, const uint8_t *p, uint64_t left,
                       frame_fault fault);

bool take_count(const char *function, Py_ssize_t given, Py_ssize_t wanted);
bool take_u64(PyObject *value, const char *name, uint64_t *out);

/* A buffer argument and the part [start, end) of it. */
typedef struct {
    Py_buffer view;
    uint8_t *base;
    uint64_t start, end;
} span_t;

bool take_buffer(PyObject *buffer, bool writable, Py_buffer *view);
bool span_open(span_t *span, PyObject *const *args, bool writable); /* args: buffer, start, end */
static inline void span_close(span_t *span) { PyBuffer_Release(&span->view); }

/* Steps over trusted frames: true with the frame at *pos in f and *pos behind it; false at the end or with an
 * exception set. */
static inline bool span_next(const span_t *span, uint64_t *pos, frame_t *f)
{
    if (*pos >= span->end)
        return false;
    frame_fault fault = frame_parse(span->base + *pos, span->end - *pos, f);
    if (fault != FRAME_OK) {
        refuse_frame("format_error", "frame at offset", *pos, span->base + *pos, span->end - *pos, fault);
        return false;
    }
    *pos += f->size;
    return true;
}

/* ---- the functions, one file per concern ---- */

#define CORE_FUNCTION(name) PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t nargs)

CORE_FUNCTION(core_stamp_frames);   /* stamp.c */
CORE_FUNCTION(core_stamp_copies);
CORE_FUNCTION(core_copy_frames);    /* copy.c */
CORE_FUNCTION(core_encode_batch);   /* encode.c */
CORE_FUNCTION(core_encode_columns); /* encode_columns.c */
CORE_FUNCTION(core_xxh3_64);        /* scan.c */
CORE_FUNCTION(core_scan_frames);
CORE_FUNCTION(core_frame_offsets);  /* read.c */
CORE_FUNCTION(core_index_entries);
CORE_FUNCTION(core_frame_tags);
CORE_FUNCTION(core_select_frames);
CORE_FUNCTION(core_decode_frames);
CORE_FUNCTION(core_payloads);
CORE_FUNCTION(core_columns);        /* columns.c */
CORE_FUNCTION(core_take_run);       /* runs.c */
CORE_FUNCTION(core_run_answers);
CORE_FUNCTION(core_run_chains);     /* files.c */
CORE_FUNCTION(core_commit);         /* commit.c */
CORE_FUNCTION(core_look);           /* look.c */
CORE_FUNCTION(core_guard);          /* guard.c */
CORE_FUNCTION(core_keep_orphans);   /* orphans.c */
CORE_FUNCTION(core_send_each);      /* fan.c */
CORE_FUNCTION(core_exchange);       /* exchange.c */
CORE_FUNCTION(core_claim_next);
CORE_FUNCTION(core_crc32);          /* messages.c */
CORE_FUNCTION(core_message_head);
CORE_FUNCTION(core_measure_messages);
CORE_FUNCTION(core_encode_messages);
CORE_FUNCTION(core_send_message);
CORE_FUNCTION(core_split_messages);
CORE_FUNCTION(core_scan_messages);
CORE_FUNCTION(core_find_message);
CORE_FUNCTION(core_publish);        /* futex.c */
CORE_FUNCTION(core_signal_count);
CORE_FUNCTION(core_raise_signal);
CORE_FUNCTION(core_await_signal);
CORE_FUNCTION(core_reserve);        /* window.c */

#endif
