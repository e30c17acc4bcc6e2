/* JSON by its grammar (RFC 8259), over memory that may end anywhere.
 *
 * Every function reads from `at` and never at or beyond `end`, and returns NULL for what is no JSON, or none that is
 * told apart here: whoever calls then leaves the text to Python's way of reading it. So nothing has to be complete
 * here, only never wrong: what is taken for valid is what msgspec takes for valid.
 */

#ifndef DUPLEX_JSON_H
#define DUPLEX_JSON_H

#include <stddef.h>
#include <string.h>

#if defined(__SSE2__) && !defined(DUPLEX_PORTABLE)
#include <immintrin.h>
#define STEP 16
#define WIDE_STEP 32
#else
#define STEP 8
#endif

typedef const unsigned char *place;

/* What a string holds besides plain ASCII; flags. */
enum {
    ESCAPES = 1,     /* some of \" \\ \b \f \n \r \t */
    OTHER_ESCAPES = 2, /* \/ or \u: escapes that need not be, so that one text has several spellings */
    NOT_ASCII = 4,
};

static inline place skip_space(place at, place end)
{
    while (at < end && *at <= ' ' && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* To be called once, before all others: takes the widest steps that the processor has. */
void choose_steps(void);

/* See find_string_end. */
place find_far_string_end(place at, place end, unsigned *holds);

#if STEP == 16
/* Which of 16 bytes no string has as they stand: quote, backslash, control characters; a bit for each. */
static inline unsigned special_bytes(__m128i bytes)
{
    __m128i special = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    special = _mm_or_si128(special, _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes));
    return (unsigned)_mm_movemask_epi8(special);
}
#endif

/* From behind a string's opening quote to its closing one. Adds what is in between to `holds`. */
static inline place find_string_end(place at, place end, unsigned *holds)
{
#if STEP == 16
    if (end - at >= STEP) { /* most are short */
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        unsigned stops = special_bytes(bytes);
        unsigned high = (unsigned)_mm_movemask_epi8(bytes);
        unsigned count = stops ? (unsigned)__builtin_ctz(stops) : STEP;
        if (high & ((1u << count) - 1))
            *holds |= NOT_ASCII;
        at += count;
        if (stops && *at == '"')
            return at;
    }
#endif
    return find_far_string_end(at, end, holds);
}

/* See skip_value. */
place skip_any_value(place at, place end);

/* From a value's first byte to behind its last. */
static inline place skip_value(place at, place end)
{
    unsigned holds = 0;
    if (at >= end)
        return NULL;
    if (*at == '"') {
        at = find_string_end(at + 1, end, &holds);
        return at ? at + 1 : NULL;
    }
    if (*at == 'n' && end - at >= 4 && memcmp(at, "null", 4) == 0)
        return at + 4;
    return skip_any_value(at, end);
}

/* The value's first byte, from behind a key's opening quote; the key is [at, *key_end). */
static inline place skip_key(place at, place end, place *key_end, unsigned *holds)
{
    place stop = find_string_end(at, end, holds);
    if (!stop)
        return NULL;
    *key_end = stop;
    at = skip_space(stop + 1, end);
    if (at >= end || *at != ':')
        return NULL;
    at = skip_space(at + 1, end);
    return at < end ? at : NULL;
}

#endif
