// Where channels are mixed first: planes as sums of channels, then rows as sums of planes, each convolved with a kernel.
#pragma once
#include "table.h"
#include "vec.h"

namespace {

using penni::kMixedAhead;
using penni::MixedPlanes;
using penni::MixedRows;

// As sparse_rows, but for rows of few entries and many: nothing is done for one besides its sum.
template <int P>
void plane_chunk(const MixedPlanes& a, int64_t at, int64_t count) {
    const float* lines = a.lines.data + at;
    const int64_t stride = a.lines.stride, pitch = a.plane_stride;
    const uint32_t* start = a.row_start;
    const uint16_t* index = a.index + *start;
    const float* coefficient = a.coefficient + *start;
    float* out = a.planes + at;
    for (const uint32_t* const last = start + a.count; start != last; ++start, out += pitch) {
        int64_t entries = start[1] - start[0];
        Vec sum[P], other[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) sum[p] = other[p] = Vec::broadcast(0.0f);
        // Two chains, or the next entry would wait for the sum of this one.
        for (; entries >= 2; entries -= 2, index += 2, coefficient += 2) {
            const float* line = lines + index[0] * stride;
            const float* next = lines + index[1] * stride;
            const Vec weight = Vec::broadcast(coefficient[0]), following = Vec::broadcast(coefficient[1]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
                sum[p] = fma(weight, Vec::load(line + p * Vec::kLanes), sum[p]);
                other[p] = fma(following, Vec::load(next + p * Vec::kLanes), other[p]);
            }
        }
        if (entries) {
            const float* line = lines + *index++ * stride;
            const Vec weight = Vec::broadcast(*coefficient++);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[p] = fma(weight, Vec::load(line + p * Vec::kLanes), sum[p]);
        }
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
            const int64_t left = count - p * Vec::kLanes;
            if (left >= Vec::kLanes) {
                (sum[p] + other[p]).store(out + p * Vec::kLanes);
            } else if (left > 0) {
                (sum[p] + other[p]).store(out + p * Vec::kLanes, left);
            }
        }
    }
}

void mixed_planes(const MixedPlanes& a) {
    constexpr int64_t kWidest = 4;
    for (int64_t at = 0; at < a.lines.positions;) {
        const int64_t left = (a.lines.positions - at + Vec::kLanes - 1) / Vec::kLanes;
        const int64_t chunks = (left + kWidest - 1) / kWidest;
        const int64_t vectors = (left + chunks - 1) / chunks;
        const int64_t count = least(a.lines.positions - at, vectors * Vec::kLanes);
        switch (vectors) {
            case 1: plane_chunk<1>(a, at, count); break;
            case 2: plane_chunk<2>(a, at, count); break;
            case 3: plane_chunk<3>(a, at, count); break;
            default: plane_chunk<4>(a, at, count); break;
        }
        at += count;
    }
}

// R rows that go with the same basis kernels, J columns of the kernel, P vectors of each: the planes of a row summed over
// the rows of the kernel, but not yet moved sideways. Whatever the number of planes is, moving is then done once per
// column. H: rows of the kernel, or 0.
template <int R, int P, int J, int H>
PENNI_INLINE void mix_columns(const MixedRows& a, int64_t row, int64_t column, int64_t at, float* out) {
    const int64_t height = H ? H : a.kernel_h, each = a.kernel_w * a.column_stride;
    Vec sum[R][J][P];
    const uint32_t* plane[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        plane[r] = a.plane + a.first[row + r];
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[r][j][p] = Vec::broadcast(0.0f);
        }
    }
    const uint32_t* kernel = a.kernel + a.first[row];
    const int64_t planes = a.first[row + 1] - a.first[row];
    for (int64_t i = 0; i < planes; ++i) {
        const float* weight = a.basis + kernel[i] * (a.kernel_h * a.kernel_w) + column;
        const float* from[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) from[r] = a.planes + plane[r][i] * a.plane_stride + at;
#pragma GCC unroll 3
        for (int64_t tap = 0; tap < height; ++tap, weight += a.kernel_w) {
            Vec value[R][P];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) value[r][p] = Vec::load(from[r] + tap * a.down + p * Vec::kLanes);
            }
#pragma GCC unroll 8
            for (int j = 0; j < J; ++j) {
                const Vec factor = Vec::broadcast(weight[j]);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p) sum[r][j][p] = fma(factor, value[r][p], sum[r][j][p]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) {
            float* line = out + r * each + (column + j) * a.column_stride + at;
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) sum[r][j][p].store(line + p * Vec::kLanes);
        }
    }
}

template <int R, int P>
PENNI_INLINE void mix_chunk(const MixedRows& a, int64_t row, int64_t at, float* out) {
    for (int64_t column = 0; column < a.kernel_w;) {
        const int64_t left = a.kernel_w - column;
        if (left >= 3) {
            if (a.kernel_h == 3) {
                mix_columns<R, P, 3, 3>(a, row, column, at, out);
            } else {
                mix_columns<R, P, 3, 0>(a, row, column, at, out);
            }
            column += 3;
        } else if (left == 2) {
            mix_columns<R, P, 2, 0>(a, row, column, at, out);
            column += 2;
        } else {
            mix_columns<R, P, 1, 0>(a, row, column, at, out);
            column += 1;
        }
    }
}

// Chunks of as many vectors as leave registers for R rows.
template <int R>
PENNI_INLINE void mix_rows(const MixedRows& a, int64_t row, float* out) {
    constexpr int kWidest = (Vec::kRegisters == 32 ? 4 : 2) / R;
    const int64_t vectors = (a.positions + Vec::kLanes - 1) / Vec::kLanes;
    int64_t v = 0;
    for (; v + kWidest <= vectors; v += kWidest) mix_chunk<R, kWidest>(a, row, v * Vec::kLanes, out);
    for (; v < vectors; ++v) mix_chunk<R, 1>(a, row, v * Vec::kLanes, out);
}

// The columns of one row moved to where they belong and summed. What moves in from another row of the image is masked.
// W: columns of the kernel, or 0.
template <int W>
PENNI_INLINE void finish_mixed(const MixedRows& a, int64_t row, const float* columns) {
    const int64_t width = W ? W : a.kernel_w;
    const Vec bias = Vec::broadcast(a.bias[row]), low = Vec::broadcast(a.low), high = Vec::broadcast(a.high);
    for (int64_t run = 0; run < a.runs; ++run) {
        float* out = a.output + row * a.pitch + run * a.run;
        const float* residual = a.residual ? a.residual + row * a.pitch + run * a.run : nullptr;
        for (int64_t at = 0; at < a.run; at += Vec::kLanes) {
            const float* from = columns + run * a.run_pitch + at - a.left;
            const int32_t* mask = a.masks + run * a.run_pitch + at;
            Vec sum = bias;
#pragma GCC unroll 3
            for (int64_t j = 0; j < width; ++j, from += a.column_stride + a.right, mask += a.mask_stride) {
                sum = sum + keep(Vec::load(from), mask);
            }
            const int64_t count = least(Vec::kLanes, a.run - at);
            if (count == Vec::kLanes) {
                if (residual) sum = sum + Vec::load(residual + at);
                min(high, max(low, sum)).store(out + at);
            } else {
                if (residual) sum = sum + Vec::load(residual + at, 0, count);
                min(high, max(low, sum)).store(out + at, count);
            }
        }
    }
}

void mixed_rows(const MixedRows& arguments) {
    const MixedRows a = arguments;  // a copy, which no store can change
    // Few vectors fill no registers, so that several rows are done with every weight.
    constexpr int64_t kMost = Vec::kRegisters == 32 ? 4 : 2;
    const int64_t vectors = (a.positions + Vec::kLanes - 1) / Vec::kLanes, together = vectors > kMost ? 1 : kMost / vectors;
    // Some rows at a time: a load across what was just stored would stall.
    for (int64_t first = a.row_begin; first < a.row_end; first += kMixedAhead) {
        const int64_t last = least(a.row_end, first + kMixedAhead), each = a.kernel_w * a.column_stride;
        for (int64_t row = first; row < last;) {
            float* out = a.columns + (row - first) * each;
            int64_t alike = 1;
            while (alike < together && row + alike < last && a.repeats[row + alike]) ++alike;
            if (kMost == 4 && alike == 4) {
                mix_rows<kMost>(a, row, out);
                row += kMost;
            } else if (alike >= 2) {
                mix_rows<2>(a, row, out);
                row += 2;
            } else {
                mix_rows<1>(a, row, out);
                row += 1;
            }
        }
        for (int64_t row = first; row < last; ++row) {
            const float* columns = a.columns + (row - first) * each;
            if (a.kernel_w == 3) {
                finish_mixed<3>(a, row, columns);
            } else {
                finish_mixed<0>(a, row, columns);
            }
        }
    }
}

}  // namespace
