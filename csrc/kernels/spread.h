// The first stage: lines made from input planes, by copying shifted rows or by convolving with the basis kernels.
#pragma once
#include "table.h"
#include "vec.h"

namespace {

using penni::BasisLines;
using penni::CopyRow;

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
            for (; at < end; ++at, from += 2) r.out[at] = *from;
        } else {
            for (; at < end; ++at, from += r.step) r.out[at] = *from;
        }
        for (; at < r.count; ++at) r.out[at] = 0.0f;
    }
}

template <int P, int N>
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
    for (int64_t tap = 0; tap < a.taps; ++tap) {
        const float* plane = a.plane + a.tap_offset[tap] + at;
        Vec value[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) value[p] = Vec::load(plane + p * Vec::kLanes);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            const Vec weight = Vec::broadcast(kernel[n][tap]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[n][p] = fma(weight, value[p], sum[n][p]);
        }
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

template <int P>
PENNI_INLINE void basis_group(const BasisLines& a, int64_t from, int64_t number, int64_t at, int64_t count) {
    switch (number) {
        case 1: basis_chunk<P, 1>(a, from, at, count); break;
        case 2: basis_chunk<P, 2>(a, from, at, count); break;
        case 3: basis_chunk<P, 3>(a, from, at, count); break;
        case 4: basis_chunk<P, 4>(a, from, at, count); break;
        case 5: basis_chunk<P, 5>(a, from, at, count); break;
        default: basis_chunk<P, 6>(a, from, at, count); break;
    }
}

void basis_lines(const BasisLines& a) {
    constexpr int64_t kWidest = Vec::kRegisters == 32 ? 4 : 2;
    constexpr int64_t kKernels = 6;
    const int64_t groups = (a.count + kKernels - 1) / kKernels;
    for (int64_t at = 0; at < a.positions;) {
        const int64_t left = (a.positions - at + Vec::kLanes - 1) / Vec::kLanes;
        const int64_t chunks = (left + kWidest - 1) / kWidest;
        const int64_t vectors = (left + chunks - 1) / chunks;
        const int64_t count = least(a.positions - at, vectors * Vec::kLanes);
        for (int64_t group = 0; group < groups; ++group) {
            const int64_t from = a.count * group / groups, number = a.count * (group + 1) / groups - from;
            if constexpr (Vec::kRegisters == 32) {
                switch (vectors) {
                    case 1: basis_group<1>(a, from, number, at, count); break;
                    case 2: basis_group<2>(a, from, number, at, count); break;
                    case 3: basis_group<3>(a, from, number, at, count); break;
                    default: basis_group<4>(a, from, number, at, count); break;
                }
            } else {
                switch (vectors) {
                    case 1: basis_group<1>(a, from, number, at, count); break;
                    default: basis_group<2>(a, from, number, at, count); break;
                }
            }
        }
        at += count;
    }
}

}  // namespace
