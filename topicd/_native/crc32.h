/* CRC-32 as in IEEE 802.3, zlib and gzip. */
#ifndef TOPICD_CRC32_H
#define TOPICD_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Goes on from crc, which is 0 at the beginning, as zlib.crc32 does. */
uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t length);

#endif
