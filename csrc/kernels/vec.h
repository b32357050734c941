// A vector of floats in the widest registers of the instruction set this unit is compiled for.
//
// Everything is in an anonymous namespace: the same names mean other code in the other units.
#pragma once
#include <cstdint>
#if defined(PENNI_AVX512) || defined(PENNI_AVX2)
#include <immintrin.h>
#elif defined(PENNI_NEON)
#include <arm_neon.h>
#endif

#define PENNI_INLINE inline __attribute__((always_inline))

namespace {

#if defined(PENNI_AVX512)

struct Vec {
    static constexpr int64_t kLanes = 16;
    static constexpr int kRegisters = 32;
    __m512 v;
    static PENNI_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static PENNI_INLINE Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
    static PENNI_INLINE __mmask16 range(int64_t low, int64_t high) {
        return static_cast<__mmask16>(((1u << high) - 1u) & ~((1u << low) - 1u));
    }
    // Lanes low to high from p, the others zero and not read.
    static PENNI_INLINE Vec load(const float* p, int64_t low, int64_t high) {
        return {_mm512_maskz_loadu_ps(range(low, high), p)};
    }
    PENNI_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
    PENNI_INLINE void store(float* p, int64_t count) const { _mm512_mask_storeu_ps(p, range(0, count), v); }
    PENNI_INLINE float sum() const { return _mm512_reduce_add_ps(v); }
    PENNI_INLINE float most() const { return _mm512_reduce_max_ps(v); }
};
PENNI_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PENNI_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// The second operand is returned when the first is not a number, as the x86 instruction does.
PENNI_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
PENNI_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
PENNI_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, 8)}; }
PENNI_INLINE Vec times_power_of_two(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
PENNI_INLINE Vec copy_sign(Vec a, Vec sign) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_andnot_si512(mask, _mm512_castps_si512(a.v)),
                                                _mm512_and_si512(mask, _mm512_castps_si512(sign.v))))};
}

// The lanes whose mask has all bits set, the others (with none) zero.
PENNI_INLINE Vec keep(Vec a, const int32_t* mask) {
    return {_mm512_and_ps(a.v, _mm512_loadu_ps(mask))};
}

// The even and the odd lanes of a followed by b.
PENNI_INLINE Vec evens(Vec a, Vec b) {
    const __m512i index = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return {_mm512_permutex2var_ps(a.v, index, b.v)};
}
PENNI_INLINE Vec odds(Vec a, Vec b) {
    const __m512i index = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return {_mm512_permutex2var_ps(a.v, index, b.v)};
}

#elif defined(PENNI_AVX2)

alignas(32) const int32_t kLaneMasks[24] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct Vec {
    static constexpr int64_t kLanes = 8;
    static constexpr int kRegisters = 16;
    __m256 v;
    static PENNI_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static PENNI_INLINE Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
    static PENNI_INLINE __m256i range(int64_t low, int64_t high) {
        const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMasks + 8 - low));
        const __m256i to = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMasks + 16 - high));
        return _mm256_and_si256(from, to);
    }
    static PENNI_INLINE Vec load(const float* p, int64_t low, int64_t high) {
        return {_mm256_maskload_ps(p, range(low, high))};
    }
    PENNI_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
    PENNI_INLINE void store(float* p, int64_t count) const { _mm256_maskstore_ps(p, range(0, count), v); }
    PENNI_INLINE float sum() const {
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    PENNI_INLINE float most() const {
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
    }
};
PENNI_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
PENNI_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
PENNI_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
PENNI_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
PENNI_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
PENNI_INLINE Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
PENNI_INLINE Vec times_power_of_two(Vec a, Vec n) {
    const __m256i bias = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(bias, 23)))};
}
PENNI_INLINE Vec copy_sign(Vec a, Vec sign) {
    const __m256 mask = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(mask, a.v), _mm256_and_ps(mask, sign.v))};
}

PENNI_INLINE Vec keep(Vec a, const int32_t* mask) {
    return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask))))};
}

PENNI_INLINE Vec in_order(__m256 mixed) {
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8))};
}
PENNI_INLINE Vec evens(Vec a, Vec b) { return in_order(_mm256_shuffle_ps(a.v, b.v, 0x88)); }
PENNI_INLINE Vec odds(Vec a, Vec b) { return in_order(_mm256_shuffle_ps(a.v, b.v, 0xdd)); }

#else  // NEON, and the portable set: four lanes by compiler vectors

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct Vec {
    static constexpr int64_t kLanes = 4;
#if defined(PENNI_NEON)
    static constexpr int kRegisters = 32;
#else
    static constexpr int kRegisters = 16;
#endif
    Float4 v;
    static PENNI_INLINE Vec load(const float* p) {
        Vec result;
        __builtin_memcpy(&result.v, p, sizeof(result.v));
        return result;
    }
    static PENNI_INLINE Vec broadcast(float x) { return {Float4{x, x, x, x}}; }
    static PENNI_INLINE Vec load(const float* p, int64_t low, int64_t high) {
        Vec result{Float4{0, 0, 0, 0}};
        for (int64_t lane = low; lane < high; ++lane) result.v[lane] = p[lane];
        return result;
    }
    PENNI_INLINE void store(float* p) const { __builtin_memcpy(p, &v, sizeof(v)); }
    PENNI_INLINE void store(float* p, int64_t count) const {
        for (int64_t lane = 0; lane < count; ++lane) p[lane] = v[lane];
    }
    PENNI_INLINE float sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
    PENNI_INLINE float most() const {
        const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
        return a > b ? a : b;
    }
};
#if defined(PENNI_NEON)
PENNI_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return {(Float4)vfmaq_f32((float32x4_t)c.v, (float32x4_t)a.v, (float32x4_t)b.v)};
}
#else
PENNI_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
#endif
PENNI_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
PENNI_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
PENNI_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
PENNI_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
PENNI_INLINE Vec select(Int4 mask, Vec a, Vec b) {
    return {(Float4)((mask & (Int4)a.v) | (~mask & (Int4)b.v))};
}
PENNI_INLINE Vec max(Vec a, Vec b) { return select((Int4)(a.v > b.v), a, b); }
PENNI_INLINE Vec min(Vec a, Vec b) { return select((Int4)(a.v < b.v), a, b); }
PENNI_INLINE Vec round(Vec a) {
    const float big = 12582912.0f;  // 1.5 · 2^23: adding it leaves no fraction bits
    volatile Float4 shifted = a.v + Float4{big, big, big, big};
    return {shifted - Float4{big, big, big, big}};
}
PENNI_INLINE Vec times_power_of_two(Vec a, Vec n) {
    const Int4 exponent = (__builtin_convertvector(n.v, Int4) + Int4{127, 127, 127, 127}) << 23;
    return {a.v * (Float4)exponent};
}
PENNI_INLINE Vec copy_sign(Vec a, Vec sign) {
    const int32_t top = static_cast<int32_t>(0x80000000u);
    return select(Int4{top, top, top, top}, sign, a);
}

PENNI_INLINE Vec keep(Vec a, const int32_t* mask) {
    Int4 bits;
    __builtin_memcpy(&bits, mask, sizeof(bits));
    return {(Float4)((Int4)a.v & bits)};
}

PENNI_INLINE Vec evens(Vec a, Vec b) { return {Float4{a.v[0], a.v[2], b.v[0], b.v[2]}}; }
PENNI_INLINE Vec odds(Vec a, Vec b) { return {Float4{a.v[1], a.v[3], b.v[1], b.v[3]}}; }

#endif

PENNI_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
PENNI_INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace
