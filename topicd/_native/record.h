/* Limits of a record and of a batch, the same for those who lay them out (encode) and those who take them (stamp).
 * What is beyond them is refused: false or NULL with the exception set. */
#ifndef TOPICD_RECORD_H
#define TOPICD_RECORD_H

#include "core.h"

bool meta_is_map(uint64_t record, const uint8_t *meta, uint32_t length); /* meta.c */

static inline bool part_fits(uint64_t record, const char *part, uint64_t size, uint32_t limit)
{
    if (size <= limit)
        return true;
    refuse("record_too_large", "record %llu: %s has %llu bytes, at most %u are allowed", (unsigned long long)record,
           part, (unsigned long long)size, limit);
    return false;
}

/* meta is NULL when there is none. */
static inline bool record_fits(uint64_t record, uint64_t node, uint64_t tag, const uint8_t *meta, uint64_t meta_len,
                               uint64_t payload)
{
    if (!part_fits(record, "node", node, MAX_NODE) || !part_fits(record, "tag", tag, MAX_TAG) ||
        !part_fits(record, "meta", meta_len, MAX_META) ||
        !part_fits(record, "data with meta", payload + meta_len, MAX_DATA_AND_META))
        return false;
    return !meta || meta_is_map(record, meta, (uint32_t)meta_len);
}

/* What a router has made of a record that was accepted before: its stamp may come on top. */
static inline bool copy_fits(uint64_t record, uint64_t node, uint64_t tag, uint64_t meta_len, uint64_t payload)
{
    return part_fits(record, "node", node, MAX_NODE) && part_fits(record, "tag", tag, MAX_TAG) &&
           part_fits(record, "meta", meta_len, MAX_META + MAX_STAMP) &&
           part_fits(record, "data with meta", payload + meta_len, MAX_DATA_AND_META + MAX_STAMP);
}

static inline PyObject *refuse_records(uint64_t found)
{
    return refuse("batch_too_large", "the batch has %s%llu records, at most %u are allowed",
                  found ? "" : "more than ", (unsigned long long)(found ? found : MAX_BATCH_RECORDS),
                  MAX_BATCH_RECORDS);
}

static inline bool batch_fits(uint64_t content)
{
    if (content <= MAX_BATCH_BYTES)
        return true;
    refuse("batch_too_large", "the batch has %llu bytes, at most %u are allowed", (unsigned long long)content,
           MAX_BATCH_BYTES);
    return false;
}

#endif
