/* 16-bit floats to float32 and back, one element at a time and without branches, so that the compiler can vectorise
 * the loops around them with the baseline instruction set.  F16C gives the same bits. */

#ifndef BYTEPS_CONVERT_H
#define BYTEPS_CONVERT_H

#include <stdint.h>
#include <string.h>

/* memcpy is how C reinterprets bits; it compiles to a register move. */
static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exact.  A half has 5 exponent and 10 mantissa bits; a float has 8 (bias larger by 112) and 23 (longer by 13). */
static inline float half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = (magnitude << 13) + (224u << 23); /* infinity and NaN: the exponent is all ones */
    const uint32_t subnormal = bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
    return float_of_bits(sign | (magnitude < 0x7c00u ? finite : special));
}

/* Rounds to nearest even.  65520 and more become infinity; a NaN becomes the positive quiet one. */
static inline uint16_t float_to_half(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Half of the 13 bits that go, less one if the last bit that stays is even; the carry may reach the exponent. */
    const uint32_t rounded = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const uint32_t normal = rounded < 0x7c00u ? rounded : 0x7c00u;
    /* One unit in the last place of 0.5f is the smallest half, so the addition does the rounding. */
    const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal; /* 2^-14, the smallest normal half */
    return (uint16_t)(magnitude <= 0x7f800000u ? sign | finite : 0x7e00u);
}

/* Exact: a bfloat16 is the upper half of a float. */
static inline float bfloat_to_float(uint16_t bfloat)
{
    return float_of_bits((uint32_t)bfloat << 16);
}

/* Rounds to nearest even; the carry of the largest values gives infinity, and that of a NaN must not wrap. */
static inline uint16_t float_to_bfloat(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) <= 0x7f800000u ? rounded : 0x7fc0u);
}

#endif
