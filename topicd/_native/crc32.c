/* CRC-32 (IEEE, reflected polynomial 0xEDB88320): eight bytes at a time by tables, and where the processor multiplies
 * without carry, 64 bytes at a time by folding (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel 2009).
 */
#include "crc32.h"
#include <string.h>

static uint32_t table[8][256];

__attribute__((constructor)) static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int slice = 1; slice < 8; slice++)
            table[slice][i] = table[slice - 1][i] >> 8 ^ table[0][table[slice - 1][i] & 0xFF];
}

/* Without the inversion at both ends. */
static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t length)
{
    for (; length >= 8; data += 8, length -= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][high & 0xFF] ^ table[2][high >> 8 & 0xFF] ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    for (; length; data++, length--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLDED __attribute__((target("pclmul,sse4.1")))
#define FOLD_MIN 64u

/* a moved on by the distance that k stands for, with b added. */
FOLDED static inline __m128i fold(__m128i a, __m128i k, __m128i b)
{
    __m128i low = _mm_clmulepi64_si128(a, k, 0x00), high = _mm_clmulepi64_si128(a, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), b);
}

FOLDED static inline __m128i load(const uint8_t *data) { return _mm_loadu_si128((const __m128i *)data); }

/* length is a multiple of 16 and at least FOLD_MIN. */
FOLDED static uint32_t by_folding(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124), poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i even = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = load(data + 16), c = load(data + 32), d = load(data + 48);
    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        a = fold(a, by_512, load(data));
        b = fold(b, by_512, load(data + 16));
        c = fold(c, by_512, load(data + 32));
        d = fold(d, by_512, load(data + 48));
    }
    a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
    for (; length; data += 16, length -= 16)
        a = fold(a, by_128, load(data));
    /* 128 bits to 64, to 32 by Barrett's reduction. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, even), by_64, 0x00));
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, even), poly, 0x10), even);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(quotient, poly, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}

static int folds;

__attribute__((constructor)) static void look_at_processor(void)
{
    __builtin_cpu_init();
    folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#endif

uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
#ifdef FOLDED
    if (folds && length >= FOLD_MIN) {
        size_t whole = length & ~(size_t)15;
        crc = by_folding(crc, data, whole);
        data += whole;
        length -= whole;
    }
#endif
    return ~by_table(crc, data, length);
}
