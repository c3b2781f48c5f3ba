/* Meta of a record is exactly one msgpack map: walked without recursion or allocation. */
#include "record.h"

typedef struct {
    const uint8_t *p, *end;
} reader_t;

typedef enum { ITEM_SCALAR, ITEM_ARRAY, ITEM_MAP, ITEM_CUT, ITEM_INVALID } item_kind;

/* A big-endian count of `width` bytes. */
static bool read_count(reader_t *r, unsigned width, uint64_t *count)
{
    if ((size_t)(r->end - r->p) < width)
        return false;
    for (*count = 0; width; width--)
        *count = *count << 8 | *r->p++;
    return true;
}

static item_kind skip(reader_t *r, uint64_t bytes)
{
    if ((uint64_t)(r->end - r->p) < bytes)
        return ITEM_CUT;
    r->p += bytes;
    return ITEM_SCALAR;
}

/* str, bin or ext with a length field; ext has a type byte more. */
static item_kind skip_sized(reader_t *r, unsigned width, unsigned more)
{
    uint64_t length;
    return read_count(r, width, &length) ? skip(r, length + more) : ITEM_CUT;
}

static item_kind open_sized(reader_t *r, unsigned width, item_kind kind, uint64_t *count)
{
    return read_count(r, width, count) ? kind : ITEM_CUT;
}

/* Reads one head; scalars are skipped whole, containers leave their number of entries in *count. */
static item_kind read_item(reader_t *r, uint64_t *count)
{
    if (r->p == r->end)
        return ITEM_CUT;
    uint8_t head = *r->p++;
    if (head <= 0x7f || head >= 0xe0)
        return ITEM_SCALAR;
    if (head <= 0x9f) {
        *count = head & 0x0f;
        return head <= 0x8f ? ITEM_MAP : ITEM_ARRAY;
    }
    if (head <= 0xbf)
        return skip(r, head & 0x1f);
    switch (head) {
    case 0xc0: case 0xc2: case 0xc3: return ITEM_SCALAR; /* nil, false, true */
    case 0xc4: case 0xc5: case 0xc6: return skip_sized(r, 1u << (head - 0xc4), 0); /* bin */
    case 0xc7: case 0xc8: case 0xc9: return skip_sized(r, 1u << (head - 0xc7), 1); /* ext */
    case 0xca: return skip(r, 4); /* floats */
    case 0xcb: return skip(r, 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return skip(r, 1u << (head - 0xcc)); /* uints */
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return skip(r, 1u << (head - 0xd0)); /* ints */
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return skip(r, 1 + (1u << (head - 0xd4))); /* fixext */
    case 0xd9: case 0xda: case 0xdb: return skip_sized(r, 1u << (head - 0xd9), 0); /* str */
    case 0xdc: case 0xdd: return open_sized(r, 2u << (head - 0xdc), ITEM_ARRAY, count);
    case 0xde: case 0xdf: return open_sized(r, 2u << (head - 0xde), ITEM_MAP, count);
    default: return ITEM_INVALID; /* 0xc1 */
    }
}

/* Every turn consumes a byte, so a huge claimed count ends as "cut short" after at most MAX_META turns. */
bool meta_is_map(uint64_t record, const uint8_t *meta, uint32_t length)
{
    typedef unsigned long long ull;
    reader_t r = {meta, meta + length};
    uint64_t open[MAX_META_DEPTH] = {1}, count = 0; /* open[d]: items still to come at depth d */
    unsigned depth = 0;
    bool first = true;
    do {
        item_kind kind = read_item(&r, &count);
        if (kind == ITEM_CUT)
            return refuse("invalid_request", "record %llu: meta ends inside its msgpack map", (ull)record), false;
        if (kind == ITEM_INVALID)
            return refuse("invalid_request", "record %llu: meta holds byte 0xc1, which is not msgpack", (ull)record),
                   false;
        if (first && kind != ITEM_MAP)
            return refuse("invalid_request", "record %llu: meta is not a msgpack map", (ull)record), false;
        if (first && count > MAX_META_KEYS)
            return refuse("record_too_large", "record %llu: meta has %llu keys, at most %u are allowed", (ull)record,
                          (ull)count, MAX_META_KEYS),
                   false;
        if (!first)
            open[depth]--;
        if (kind == ITEM_MAP || kind == ITEM_ARRAY) {
            if (!first && ++depth == MAX_META_DEPTH)
                return refuse("invalid_request", "record %llu: meta is nested deeper than %u", (ull)record,
                              MAX_META_DEPTH),
                       false;
            open[depth] = kind == ITEM_MAP ? 2 * count : count;
        }
        first = false;
        while (depth && !open[depth])
            depth--;
    } while (depth || open[0]);
    if (r.p != r.end)
        return refuse("invalid_request", "record %llu: meta has %llu bytes behind its msgpack map", (ull)record,
                      (ull)(r.end - r.p)),
               false;
    return true;
}
