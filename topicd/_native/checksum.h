/* XXH3-64 compiled into its callers: on short frames the call itself would be a good part of the cost. */
#ifndef TOPICD_CHECKSUM_H
#define TOPICD_CHECKSUM_H

#define XXH_INLINE_ALL
#include "xxhash.h"

#include "core.h"

/* Over everything between the length field and the checksum; size >= FRAME_OVERHEAD. */
static inline uint64_t frame_checksum(const uint8_t *frame, uint64_t size)
{
    return XXH3_64bits(frame + LEN_FIELD, (size_t)(size - LEN_FIELD - FRAME_CHECKSUM));
}

#endif
