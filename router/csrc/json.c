/* JSON by its grammar; see json.h. */

#include "json.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Deeper values are Python's to read; a bit of a word says of each level whether it is an object. */
#define MAX_DEPTH 64

static inline bool is_simple_escape(unsigned char byte)
{
    switch (byte) {
    case '"': case '\\': case 'b': case 'f': case 'n': case 'r': case 't':
        return true;
    default:
        return false;
    }
}

static int hex_digit(unsigned char byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The code unit of the four digits behind `\u`; -1 where there are none. */
static int code_unit(place at, place end)
{
    int unit = 0;
    if (end - at < 4)
        return -1;
    for (int digit = 0; digit < 4; digit++) {
        int value = hex_digit(at[digit]);
        if (value < 0)
            return -1;
        unit = unit << 4 | value;
    }
    return unit;
}

/* From a backslash to behind its escape. Surrogates must come in pairs. */
static place skip_escape(place at, place end, unsigned *holds)
{
    int unit;
    if (end - at < 2)
        return NULL;
    if (is_simple_escape(at[1])) {
        *holds |= ESCAPES;
        return at + 2;
    }
    switch (at[1]) {
    case '/':
        *holds |= OTHER_ESCAPES;
        return at + 2;
    case 'u':
        *holds |= OTHER_ESCAPES;
        unit = code_unit(at + 2, end);
        if (unit < 0 || unit >> 10 == 0xdc00 >> 10)
            return NULL;
        if (unit >> 10 != 0xd800 >> 10)
            return at + 6;
        if (end - at < 12 || at[6] != '\\' || at[7] != 'u' || code_unit(at + 8, end) >> 10 != 0xdc00 >> 10)
            return NULL;
        return at + 12;
    default:
        return NULL;
    }
}

#if STEP == 16
/* Over bytes that a string may have, by steps: to a quote, to an escape that need not be, to a control character, or to
 * where less than a step and a byte are left. */
static place skip_plain(place at, place end, unsigned *holds)
{
    while (end - at > STEP) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        unsigned stops = special_bytes(bytes), high = (unsigned)_mm_movemask_epi8(bytes), step = STEP;
        while (stops) {
            unsigned count = (unsigned)__builtin_ctz(stops);
            if (at[count] != '\\' || !is_simple_escape(at[count + 1])) {
                *holds |= high & ((1u << count) - 1) ? NOT_ASCII : 0;
                return at + count;
            }
            *holds |= ESCAPES;
            stops &= ~(3u << count); /* what is escaped is no stop */
            step = count == STEP - 1 ? STEP + 1 : STEP;
        }
        *holds |= high ? NOT_ASCII : 0;
        at += step;
    }
    return at;
}
#else
/* The same, and it also stops at simple escapes. */
static place skip_plain(place at, place end, unsigned *holds)
{
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    while (end - at > STEP) {
        uint64_t word, quote, backslash;
        memcpy(&word, at, sizeof word);
        quote = word ^ (ones * '"');
        backslash = word ^ (ones * '\\');
        /* The classic tests for a byte of zero, or less than 32, in a word. */
        if ((((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - ones * 32) & ~word)) & tops)
            break;
        *holds |= word & tops ? NOT_ASCII : 0;
        at += STEP;
    }
    return at;
}
#endif

#if defined(WIDE_STEP)
/* The same by steps of 32 bytes, where the processor has them; the last ones by steps of 16. */
__attribute__((target("avx2"))) static place skip_plain_wide(place at, place end, unsigned *holds)
{
    const __m256i quote = _mm256_set1_epi8('"'), backslash = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1f);
    while (end - at > WIDE_STEP) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)at);
        __m256i special = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote), _mm256_cmpeq_epi8(bytes, backslash));
        unsigned high = (unsigned)_mm256_movemask_epi8(bytes), step = WIDE_STEP, stops;
        special = _mm256_or_si256(special, _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, control), bytes));
        stops = (unsigned)_mm256_movemask_epi8(special);
        while (stops) {
            unsigned count = (unsigned)__builtin_ctz(stops);
            if (at[count] != '\\' || !is_simple_escape(at[count + 1])) {
                *holds |= high & ((1u << count) - 1) ? NOT_ASCII : 0;
                return at + count;
            }
            *holds |= ESCAPES;
            stops &= ~(3u << count);
            step = count == WIDE_STEP - 1 ? WIDE_STEP + 1 : WIDE_STEP;
        }
        *holds |= high ? NOT_ASCII : 0;
        at += step;
    }
    return skip_plain(at, end, holds);
}
#endif

static place (*skip_string)(place at, place end, unsigned *holds) = skip_plain;

void choose_steps(void)
{
#if defined(WIDE_STEP)
    if (__builtin_cpu_supports("avx2"))
        skip_string = skip_plain_wide;
#endif
}

place find_far_string_end(place at, place end, unsigned *holds)
{
    while (at < end) {
        at = skip_string(at, end, holds);
        /* What stopped that, or, byte by byte, the last few. */
        do {
            if (at >= end || *at < 0x20)
                return NULL;
            if (*at == '"')
                return at;
            if (*at == '\\') {
                at = skip_escape(at, end, holds);
                if (!at)
                    return NULL;
            } else {
                *holds |= *at >= 0x80 ? NOT_ASCII : 0;
                at++;
            }
        } while (end - at <= STEP);
    }
    return NULL;
}

static inline bool is_digit(place at, place end)
{
    return at < end && *at >= '0' && *at <= '9';
}

static place skip_digits(place at, place end)
{
    if (!is_digit(at, end))
        return NULL;
    while (is_digit(at, end))
        at++;
    return at;
}

/* From behind a number's integer to behind its fraction and exponent. */
static inline place skip_fraction(place at, place end)
{
    if (at < end && *at == '.')
        at = skip_digits(at + 1, end);
    if (at && at < end && (*at | 0x20) == 'e') {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        at = skip_digits(at, end);
    }
    return at;
}

static place skip_number(place at, place end)
{
    if (at < end && *at == '-')
        at++;
    if (at < end && *at == '0')
        at++;
    else
        at = skip_digits(at, end);
    return at ? skip_fraction(at, end) : NULL;
}

/* From the first digit, which is not zero, of a number in an array to behind it or a later one: lists of blocks have
 * thousands of integers, and nothing between them but commas. */
static place skip_numbers(place at, place end)
{
#if STEP == 16
    place first = at;
    unsigned begins = 1; /* a number has to begin with the next byte */
    while (end - at >= STEP) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i values = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
        unsigned digits = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(values, _mm_set1_epi8(9)), values));
        unsigned zeros = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(values, _mm_setzero_si128()));
        unsigned commas = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(',')));
        if ((digits | commas) != 0xffff || (commas << 1 | begins) & (commas | zeros))
            break;
        begins = commas >> 15;
        at += STEP;
    }
    if (begins && at > first)
        return at - 1; /* the comma behind a number */
#endif
    while (is_digit(at, end))
        at++;
    return skip_fraction(at, end);
}

static place skip_word(place at, place end, const char *word, ptrdiff_t length)
{
    return end - at >= length && memcmp(at, word, (size_t)length) == 0 ? at + length : NULL;
}

static place skip_any_key(place at, place end)
{
    place key_end;
    unsigned holds = 0;
    return at < end && *at == '"' ? skip_key(at + 1, end, &key_end, &holds) : NULL;
}

/* A value that is neither a string, an object nor an array. */
static place skip_scalar(place at, place end)
{
    switch (*at) {
    case 't':
        return skip_word(at, end, "true", 4);
    case 'f':
        return skip_word(at, end, "false", 5);
    case 'n':
        return skip_word(at, end, "null", 4);
    default:
        return skip_number(at, end);
    }
}

place skip_any_value(place at, place end)
{
    uint64_t objects = 0;
    int depth = 0;
    while (at && at < end) {
        if (*at == '{' || *at == '[') {
            bool object = *at == '{';
            if (depth == MAX_DEPTH)
                return NULL;
            at = skip_space(at + 1, end);
            if (at >= end)
                return NULL;
            if (*at != (object ? '}' : ']')) {
                objects = objects << 1 | object;
                depth++;
                if (object)
                    at = skip_any_key(at, end);
                continue;
            }
            at++;
        } else {
            if (*at == '"') {
                unsigned holds = 0;
                at = find_string_end(at + 1, end, &holds);
                at = at ? at + 1 : NULL;
            } else if (depth && !(objects & 1) && *at >= '1' && *at <= '9') {
                at = skip_numbers(at, end);
            } else {
                at = skip_scalar(at, end);
            }
            if (!at)
                return NULL;
        }
        /* Behind a value: close what ends here, and go on to the next one. */
        for (;;) {
            if (!depth)
                return at;
            at = skip_space(at, end);
            if (at >= end)
                return NULL;
            if (*at == ',') {
                at = skip_space(at + 1, end);
                if (objects & 1)
                    at = skip_any_key(at, end);
                break;
            }
            if (*at != (objects & 1 ? '}' : ']'))
                return NULL;
            at++;
            objects >>= 1;
            depth--;
        }
    }
    return NULL;
}
