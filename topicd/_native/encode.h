/* Records as they are laid out: where they come from differs, the frames do not. */
#ifndef TOPICD_ENCODE_H
#define TOPICD_ENCODE_H

#include "record.h"

/* Data of record i. bytes need no buffer request, which is most of the cost of a small record. */
typedef struct {
    const uint8_t *p;
    uint64_t length;
    Py_buffer view;
    bool held;
} data_t;

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

/* The frames of all records of a source, or NULL with an exception set. */
PyObject *encode(const source_t *s);

#endif
