// The first stage: lines made from input planes, by copying shifted rows or by convolving with the basis kernels.
#pragma once
#include "chunks.h"
#include "table.h"
#include "vec.h"

namespace {

using penni::Apart;
using penni::BasisLines;
using penni::CopyRow;
using penni::LineRun;
using penni::LineSource;
using penni::MaskedBasisLines;
using penni::TapLines;

// Adds what one tap sees, P vectors of it, times the weights of N kernels.
template <int P, int N>
PENNI_INLINE void add_tap(const float* const (&weights)[N], int64_t tap, const Vec (&value)[P], Vec (&sum)[N][P]) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
        const Vec weight = Vec::broadcast(weights[n][tap]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[n][p] = fma(weight, value[p], sum[n][p]);
    }
}

// The same for all taps; `load` reads the vector of a tap that has this number, from there.
template <int P, int N, typename Load>
PENNI_INLINE void add_taps(const float* image, const float* const (&weights)[N], int64_t taps, const int32_t* tap_offset,
                           Vec (&sum)[N][P], const Load& load) {
    for (int64_t tap = 0; tap < taps; ++tap) {
        const float* from = image + tap_offset[tap];
        Vec value[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) value[p] = load(from + p * Vec::kLanes, tap, p);
        add_tap(weights, tap, value, sum);
    }
}

struct Whole {
    PENNI_INLINE Vec operator()(const float* from, int64_t, int) const { return Vec::load(from); }
};

#if defined(PENNI_AVX512)
constexpr bool kReadsMasked = true;
PENNI_INLINE Vec load_masked(const float* p, uint16_t mask) { return {_mm512_maskz_loadu_ps(mask, p)}; }

struct Masked {
    const uint16_t* masks;
    int64_t stride;
    PENNI_INLINE Vec operator()(const float* from, int64_t tap, int vector) const {
        return load_masked(from, masks[tap * stride + vector]);
    }
};

// Sixteen neighbours from lane `First` of the first vector on; zero where the mask is.
template <int First>
PENNI_INLINE Vec neighbours(Vec first, Vec second, uint16_t mask) {
    const __m512i low = _mm512_castps_si512(first.v), high = _mm512_castps_si512(second.v);
    return {_mm512_castsi512_ps(_mm512_maskz_alignr_epi32(mask, high, low, First))};
}
template <int First>
PENNI_INLINE Vec neighbours(Vec first, Vec second) {
    return {_mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(second.v), _mm512_castps_si512(first.v), First))};
}

constexpr int64_t kLinesAhead = 12;

template <int P>
PENNI_INLINE void tap_chunk(const TapLines& a, int64_t at) {
    const float* image = a.image + at;
    const uint16_t* masks = a.masks + at / Vec::kLanes;
    float* out = a.out + at;
    for (int64_t i = 0; i < a.count; ++i, out += a.stride) {
        const LineSource line = a.lines[i];
        const float* from = image + line.channel * a.channel_size + a.tap_offset[line.tap];
        const uint16_t* mask = masks + line.tap * a.mask_stride;
        // Too short a run of each channel is read for the processor to see a pattern.
        const float* later = image + a.lines[least(i + kLinesAhead, a.count - 1)].channel * a.channel_size;
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) __builtin_prefetch(later + p * Vec::kLanes);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) load_masked(from + p * Vec::kLanes, mask[p]).store(out + p * Vec::kLanes);
    }
}

void tap_lines(const TapLines& a) {
    each_chunk<8>(a.positions, [&](auto vectors, int64_t at, int64_t) { tap_chunk<vectors.value>(a, at); });
}
constexpr auto kTapLines = &tap_lines;

// What the left and the right of three neighbouring taps see, from the vectors that the middle one sees: a read across
// two cache lines takes as long as two. `Width` is that of a row of the plane, where rows fill vectors or divide them:
// then it is known where a row begins and ends. 0 stands for any other.
constexpr uint16_t row_starts(int width) { return width >= 16 ? 1 : static_cast<uint16_t>(row_starts(width * 2) * ((1u << width) + 1)); }

template <int P, int Width>
PENNI_INLINE void see_left(const Vec (&value)[P], Vec before, const uint16_t* mask, Vec (&seen)[P]) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
        if constexpr (Width >= Vec::kLanes) {
            seen[p] = neighbours<15>(p * Vec::kLanes % Width ? value[p - 1] : Vec::broadcast(0.0f), value[p]);
        } else if constexpr (Width > 0) {
            seen[p] = neighbours<15>(value[p], value[p], static_cast<uint16_t>(~row_starts(Width)));
        } else {
            seen[p] = neighbours<15>(p ? value[p - 1] : before, value[p], mask[p]);
        }
    }
}

template <int P, int Width>
PENNI_INLINE void see_right(const Vec (&value)[P], Vec behind, const uint16_t* mask, Vec (&seen)[P]) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
        if constexpr (Width >= Vec::kLanes) {
            seen[p] = neighbours<1>(value[p], (p + 1) * Vec::kLanes % Width ? value[p + 1] : Vec::broadcast(0.0f));
        } else if constexpr (Width > 0) {
            constexpr uint16_t ends = static_cast<uint16_t>(row_starts(Width) << (Width - 1));
            seen[p] = neighbours<1>(value[p], value[p], static_cast<uint16_t>(~ends));
        } else {
            seen[p] = neighbours<1>(value[p], p < P - 1 ? value[p + 1] : behind, mask[p]);
        }
    }
}

// Adds what the three rows of three neighbouring taps see, P vectors of it, times the weights of N kernels.
template <int P, int N, int Width>
PENNI_INLINE void add_adjacent(const float* image, const float* const (&weights)[N], const int32_t* tap_offset,
                               const uint16_t* masks, int64_t mask_stride, Vec (&sum)[N][P]) {
    for (int row = 0; row < 3; ++row, masks += 3 * mask_stride) {
        const float* from = image + tap_offset[3 * row + 1];
        const uint16_t *left = masks, *middle = left + mask_stride, *right = middle + mask_stride;
        Vec before{}, behind{}, value[P], seen[P];
        if constexpr (Width == 0) {
            // Of the vectors before and behind, the one pixel that is a neighbour, if it is one.
            before = load_masked(from - Vec::kLanes, static_cast<uint16_t>(left[0] << 15));
            behind = load_masked(from + P * Vec::kLanes, right[P - 1] >> 15);
        }
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) value[p] = load_masked(from + p * Vec::kLanes, middle[p]);
        see_left<P, Width>(value, before, left, seen);
        add_tap(weights, 3 * row, seen, sum);
        add_tap(weights, 3 * row + 1, value, sum);
        see_right<P, Width>(value, behind, right, seen);
        add_tap(weights, 3 * row + 2, seen, sum);
    }
}

// Calls `function` with the width of the plane's rows as a type, if P vectors from position `start` on are made of such rows;
// else with 0.
template <int P, typename Function>
PENNI_INLINE void with_width(int64_t width, int64_t start, Function&& function) {
    if (width < Vec::kLanes || start % width == 0) {
        if constexpr (P == 4) {
            if (width == 64) return function(Number<64>{});
        }
        if constexpr (P % 2 == 0) {
            if (width == 32) return function(Number<32>{});
        }
        if (width == 16) return function(Number<16>{});
        if (width == 8) return function(Number<8>{});
    }
    function(Number<0>{});
}

// N basis lines of one channel, P vectors of each. What does not change from channel to channel comes by value. `Width` as
// above, or −1: the taps are not three rows of three neighbours.
template <int P, int N, int Width>
PENNI_INLINE void masked_basis_chunk(const float* image, const float* const* kernel, int64_t taps,
                                     const int32_t* tap_offset, const uint16_t* masks, int64_t mask_stride, float* out,
                                     int64_t stride) {
    const float* weights[N];
    Vec sum[N][P];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
        weights[n] = kernel[n];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[n][p] = Vec::broadcast(0.0f);
    }
    if constexpr (Width < 0) {
        add_taps(image, weights, taps, tap_offset, sum, Masked{masks, mask_stride});
    } else {
        add_adjacent<P, N, Width>(image, weights, tap_offset, masks, mask_stride, sum);
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[n][p].store(out + n * stride + p * Vec::kLanes);
    }
}

// The same for planes of one vector: four channels at once share the weights, and their sums do not wait for each other.
template <int N>
PENNI_INLINE void masked_basis_channels(const float* const* image, const MaskedBasisLines& a, uint16_t const* masks,
                                        float* out) {
    constexpr int kChannels = 4;
    const float* from[kChannels];
    Vec sum[N][kChannels];
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) {
        from[c] = image[c];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[n][c] = Vec::broadcast(0.0f);
    }
    const float* weights = a.basis;
    for (int64_t tap = 0; tap < a.taps; ++tap, masks += a.mask_stride) {
        Vec value[kChannels];
#pragma GCC unroll 8
        for (int c = 0; c < kChannels; ++c) value[c] = load_masked(from[c] + a.tap_offset[tap], *masks);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const Vec weight = Vec::broadcast(weights[n * a.taps + tap]);
#pragma GCC unroll 8
            for (int c = 0; c < kChannels; ++c) sum[n][c] = fma(weight, value[c], sum[n][c]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < kChannels; ++c) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[n][c].store(out + (c * N + n) * a.stride);
    }
}

// Whether four runs could be made at once: of four channels, each read through every basis kernel.
template <int N>
PENNI_INLINE bool masked_basis_narrow(const MaskedBasisLines& a, const LineRun* run, int64_t at) {
    const float* image[4];
    for (int c = 0; c < 4; ++c) {
        if (!run[c].whole || run[c].line != run[0].line + c * N) return false;
        image[c] = a.image + run[c].channel * a.channel_size + at;
    }
    masked_basis_channels<N>(image, a, a.masks + at / Vec::kLanes, a.out + run[0].line * a.stride + at);
    return true;
}

template <int P, int Width>
void basis_runs(const MaskedBasisLines& a, int64_t at) {
    const uint16_t* masks = a.masks + at / Vec::kLanes;
    for (const LineRun *run = a.runs, *end = a.runs + a.count; run < end;) {
        if constexpr (P == 1) {
            bool done = false;
            if (end - run >= 4 && a.bases <= penni::kRunLines) {
                with_number<penni::kRunLines>(a.bases, [&](auto bases) __attribute__((always_inline)) {
                    done = masked_basis_narrow<bases.value>(a, run, at);
                });
            }
            if (done) {
                run += 4;
                continue;
            }
        }
        const float* image = a.image + run->channel * a.channel_size + at;
        float* out = a.out + run->line * a.stride + at;
        const float* kernel[penni::kRunLines];
        for (uint32_t n = 0; n < run->count; ++n) kernel[n] = a.basis + run->kernels[n];
        with_number<penni::kRunLines>(run->count, [&](auto lines) __attribute__((always_inline)) {
            // Six lines leave no registers for neighbours.
            constexpr int N = lines.value;
            masked_basis_chunk<P, N, (N > 5 ? -1 : Width)>(image, kernel, a.taps, a.tap_offset, masks, a.mask_stride, out,
                                                           a.stride);
        });
        ++run;
    }
}

template <int P>
void masked_basis(const MaskedBasisLines& a, int64_t at) {
    if (!a.width) {
        basis_runs<P, -1>(a, at);
    } else {
        with_width<P>(a.width, a.start + at, [&](auto width) { basis_runs<P, width.value>(a, at); });
    }
}

void masked_basis_lines(const MaskedBasisLines& a) {
    each_chunk<4>(a.positions, [&](auto vectors, int64_t at, int64_t) { masked_basis<vectors.value>(a, at); });
}
constexpr auto kMaskedBasisLines = &masked_basis_lines;
#else
constexpr bool kReadsMasked = false;
constexpr void (*kTapLines)(const TapLines&) = nullptr;
constexpr void (*kMaskedBasisLines)(const MaskedBasisLines&) = nullptr;
#endif

// May write up to a vector beyond `count`: the scratch it writes to has room, and later rows overwrite it.
void copy_rows(const CopyRow* rows, int64_t number) {
    for (int64_t i = 0; i < number; ++i) {
        const CopyRow& r = rows[i];
        if (!r.row) {
            for (int64_t at = 0; at < r.count; at += Vec::kLanes) Vec::broadcast(0.0f).store(r.out + at);
            continue;
        }
        if (r.step == 1) {
            for (int64_t at = 0; at < r.count; at += Vec::kLanes) {
                const int64_t column = r.first + at;
                if (column >= 0 && column + Vec::kLanes <= r.width) {
                    Vec::load(r.row + column).store(r.out + at);
                } else {
                    const int64_t low = least(Vec::kLanes, greatest(0, -column));
                    const int64_t high = least(Vec::kLanes, r.width - column);
                    const Vec part = high > low ? Vec::load(r.row + column, low, high) : Vec::broadcast(0.0f);
                    part.store(r.out + at);
                }
            }
            continue;
        }
        int64_t at = 0, column = r.first;
        for (; at < r.count && column < 0; ++at, column += r.step) r.out[at] = 0.0f;
        const int64_t inside = column < r.width ? (r.width - column + r.step - 1) / r.step : 0;
        const int64_t end = least(r.count, at + inside);
        const float* from = r.row + column;
        if (r.step == 2) {
            // Two vectors of the row give one of even columns. Nothing beyond `count` is written.
            for (; at < end; at += Vec::kLanes, from += 2 * Vec::kLanes) {
                const int64_t left = r.row + r.width - from, wanted = end - at;
                if (wanted >= Vec::kLanes && left >= 2 * Vec::kLanes) {
                    evens(Vec::load(from), Vec::load(from + Vec::kLanes)).store(r.out + at);
                } else {
                    const Vec first = Vec::load(from, 0, least(Vec::kLanes, left));
                    const Vec second = left > Vec::kLanes ? Vec::load(from + Vec::kLanes, 0, least(Vec::kLanes, left - Vec::kLanes))
                                                          : Vec::broadcast(0.0f);
                    evens(first, second).store(r.out + at, least(Vec::kLanes, wanted));
                }
            }
            at = end;
        } else {
            for (; at < end; ++at, from += r.step) r.out[at] = *from;
        }
        for (; at < r.count; ++at) r.out[at] = 0.0f;
    }
}

void take_apart(const Apart& a) {
    float* out = a.out;
    for (int64_t i = 0; i < a.count; ++i) {
        const int64_t down = a.phases[i] / 2, right = a.phases[i] % 2;
        for (int64_t row = 0; row < a.out_height; ++row, out += a.out_width) {
            const int64_t y = 2 * row + down;
            const float* from = a.in + y * a.width + right;
            for (int64_t c = 0; c < a.out_width; c += Vec::kLanes) {
                const int64_t left = y < a.height ? a.width - right - 2 * c : 0, wanted = a.out_width - c;
                Vec value;
                if (left >= 2 * Vec::kLanes) {
                    value = evens(Vec::load(from + 2 * c), Vec::load(from + 2 * c + Vec::kLanes));
                } else if (left > Vec::kLanes) {
                    value = evens(Vec::load(from + 2 * c), Vec::load(from + 2 * c + Vec::kLanes, 0, left - Vec::kLanes));
                } else {
                    value = Vec::broadcast(0.0f);
                    if (left > 0) value = evens(Vec::load(from + 2 * c, 0, left), value);
                }
                if (wanted >= Vec::kLanes) {
                    value.store(out + c);
                } else {
                    value.store(out + c, wanted);
                }
            }
        }
    }
}

template <int P, int N, bool ByMasks>
void basis_chunk(const BasisLines& a, int64_t from, int64_t at, int64_t count) {
    const float* kernel[N];
    Vec sum[N][P];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
        kernel[n] = a.kernels[from + n];
        const Vec start = Vec::broadcast(a.start ? a.start[from + n] : 0.0f);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[n][p] = start;
    }
    const float* plane = a.plane + at;
#if defined(PENNI_AVX512)
    if constexpr (ByMasks) {
        const uint16_t* masks = a.masks + at / Vec::kLanes;
        if (a.width) {
            with_width<P>(a.width, a.begin + at, [&](auto width) __attribute__((always_inline)) {
                add_adjacent<P, N, width.value>(plane, kernel, a.tap_offset, masks, a.mask_stride, sum);
            });
        } else {
            add_taps(plane, kernel, a.taps, a.tap_offset, sum, Masked{masks, a.mask_stride});
        }
    } else
#endif
    {
        add_taps(plane, kernel, a.taps, a.tap_offset, sum, Whole{});
    }
    const Vec low = Vec::broadcast(a.low), high = Vec::broadcast(a.high);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
        float* line = a.lines + (from + n) * a.stride + at;
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const Vec value = min(high, max(low, sum[n][p]));
            const int64_t left = count - p * Vec::kLanes;
            if (!a.exact || left >= Vec::kLanes) {
                value.store(line + p * Vec::kLanes);
            } else if (left > 0) {
                value.store(line + p * Vec::kLanes, left);
            }
        }
    }
}

template <int P, int N>
PENNI_INLINE void basis_chunk(const BasisLines& a, int64_t from, int64_t at, int64_t count) {
    // With masks there is one kernel for each plane: a depthwise convolution.
    if constexpr (kReadsMasked && N == 1) {
        if (a.masks) return basis_chunk<P, N, true>(a, from, at, count);
    }
    basis_chunk<P, N, false>(a, from, at, count);
}

void basis_lines(const BasisLines& a) {
    constexpr int kWidest = Vec::kRegisters == 32 ? 4 : 2;
    constexpr int kKernels = 6;
    const int64_t groups = (a.count + kKernels - 1) / kKernels;
    each_chunk<kWidest>(a.positions, [&](auto vectors, int64_t at, int64_t count) {
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t from = a.count * group / groups, number = a.count * (group + 1) / groups - from;
            with_number<kKernels>(number, [&](auto kernels) __attribute__((always_inline)) {
                basis_chunk<vectors.value, kernels.value>(a, from, at, count);
            });
        }
    });
}

}  // namespace
