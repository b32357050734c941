// The second stage: output rows as weighted sums of scratch lines, sparse or dense.
#pragma once
#include "chunks.h"
#include "table.h"
#include "vec.h"

namespace {

using penni::DenseOutputs;
using penni::DenseRows;
using penni::Finish;
using penni::kFewPositions;
using penni::kPanelOutputs;
using penni::kPanelRows;
using penni::kSharedRows;
using penni::kSharedSets;
using penni::kSharedWords;
using penni::kNoRow;
using penni::kSliceRows;
using penni::kSliceWords;
using penni::SharedRows;
using penni::SlicedRows;
using penni::SparseRows;

// What a row starts from: its bias, or what the lines before these gave.
template <int P>
PENNI_INLINE void start_row(const Finish& f, int64_t row, int64_t at, int64_t stride, Vec (&sum)[P]) {
    if (f.first) {
        const Vec bias = Vec::broadcast(f.bias[row]);
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p] = bias;
    } else {
        const float* partial = f.partial + row * stride + at;
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p] = Vec::load(partial + p * Vec::kLanes);
    }
}

// `count` positions of the row are wanted; the vectors may reach further.
template <int P>
PENNI_INLINE void finish_row(const Finish& f, int64_t row, int64_t at, int64_t stride, int64_t count, Vec (&sum)[P]) {
    if (!f.last) {
        float* partial = f.partial + row * stride + at;
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) sum[p].store(partial + p * Vec::kLanes);
        return;
    }
    float* out = f.output + row * f.pitch + at;
    const Vec low = Vec::broadcast(f.low), high = Vec::broadcast(f.high);
    if (count == P * Vec::kLanes) {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            Vec value = sum[p];
            if (f.residual) value = value + Vec::load(f.residual + row * f.residual_pitch + at + p * Vec::kLanes);
            min(high, max(low, value)).store(out + p * Vec::kLanes);
        }
        return;
    }
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
        const int64_t left = greatest(0, least(Vec::kLanes, count - p * Vec::kLanes));
        Vec value = sum[p];
        if (f.residual && left) {
            value = value + Vec::load(f.residual + row * f.residual_pitch + at + p * Vec::kLanes, 0, left);
        }
        if (left) min(high, max(low, value)).store(out + p * Vec::kLanes, left);
    }
}

template <int P>
void sparse_chunk(const SparseRows& a, int64_t at, int64_t count) {
    const float* lines = a.lines.data + at;
    const int64_t stride = a.lines.stride;
    for (int64_t row = a.row_begin; row < a.row_end; ++row) {
        const uint16_t* index = a.index + a.row_start[row];
        const uint16_t* const end = a.index + a.row_start[row + 1];
        const float* coefficient = a.coefficient + a.row_start[row];
        if (index == end && !a.finish.first && !a.finish.last) continue;
        Vec sum[P];
        start_row<P>(a.finish, row, at, stride, sum);
        if constexpr (P <= 2) {
            // Few vectors: two chains, or the next entry would wait for the sum of this one.
            Vec other[P];
            for (int p = 0; p < P; ++p) other[p] = Vec::broadcast(0.0f);
            for (; index + 1 < end; index += 2, coefficient += 2) {
                const float* line = lines + index[0] * stride;
                const float* next = lines + index[1] * stride;
                const Vec weight = Vec::broadcast(coefficient[0]), following = Vec::broadcast(coefficient[1]);
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) {
                    sum[p] = fma(weight, Vec::load(line + p * Vec::kLanes), sum[p]);
                    other[p] = fma(following, Vec::load(next + p * Vec::kLanes), other[p]);
                }
            }
            for (int p = 0; p < P; ++p) sum[p] = sum[p] + other[p];
        }
#pragma GCC unroll 2
        for (; index != end; ++index, ++coefficient) {
            const float* line = lines + *index * stride;
            const Vec weight = Vec::broadcast(*coefficient);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) sum[p] = fma(weight, Vec::load(line + p * Vec::kLanes), sum[p]);
        }
        finish_row<P>(a.finish, row, at, stride, count, sum);
    }
}

void sparse_rows(const SparseRows& a) {
    each_chunk<8>(a.lines.positions, [&](auto vectors, int64_t at, int64_t count) { sparse_chunk<vectors.value>(a, at, count); });
}

// Weights come from far away and are read once: so many entries ahead they are asked for.
constexpr int64_t kAhead = 512;

// The lines that just these rows of a group read.
template <int Rows, int P>
PENNI_INLINE void shared_set(const SharedRows& a, int64_t at, int64_t lines, const uint16_t*& index,
                             const float*& coefficient, Vec (&sum)[kSharedRows][P]) {
    for (; lines > 0; --lines, ++index) {
        const float* line = a.lines.data + *index * a.lines.stride + at;
        __builtin_prefetch(coefficient + kAhead);
        Vec value[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) value[p] = Vec::load(line + p * Vec::kLanes);
#pragma GCC unroll 4
        for (int row = 0; row < kSharedRows; ++row) {
            if (!(Rows >> row & 1)) continue;
            const Vec weight = Vec::broadcast(*coefficient++);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) sum[row][p] = fma(weight, value[p], sum[row][p]);
        }
    }
}

template <int Rows, int P>
PENNI_INLINE void shared_sets(const SharedRows& a, int64_t at, const uint32_t* lines, const uint16_t* index,
                              const float* coefficient, Vec (&sum)[kSharedRows][P]) {
    shared_set<Rows, P>(a, at, lines[Rows - 1], index, coefficient, sum);
    if constexpr (Rows < kSharedSets) shared_sets<Rows + 1, P>(a, at, lines, index, coefficient, sum);
}

template <int P>
void shared_chunk(const SharedRows& a, int64_t at, int64_t count) {
    const uint32_t* group = a.group + a.row_begin / kSharedRows * kSharedWords;
    for (int64_t row = a.row_begin; row < a.row_end; row += kSharedRows, group += kSharedWords) {
        Vec sum[kSharedRows][P];
        const int64_t last = least(kSharedRows, a.row_end - row) - 1;
        // The last group may be short: what stands for a row that is not there starts as a copy and is not kept.
#pragma GCC unroll 4
        for (int r = 0; r < kSharedRows; ++r) start_row<P>(a.finish, row + least(r, last), at, a.lines.stride, sum[r]);
        shared_sets<1, P>(a, at, group + 2, a.index + group[0], a.coefficient + group[1], sum);
#pragma GCC unroll 4
        for (int r = 0; r < kSharedRows; ++r) {
            if (r <= last) finish_row<P>(a.finish, row + r, at, a.lines.stride, count, sum[r]);
        }
    }
}

void shared_rows(const SharedRows& a) {
    constexpr int kWidest = Vec::kRegisters == 32 ? 4 : 2;
    each_chunk<kWidest>(a.lines.positions,
                        [&](auto vectors, int64_t at, int64_t count) { shared_chunk<vectors.value>(a, at, count); });
}

template <int P>
void sliced_chunk(const SlicedRows& a, int64_t at, int64_t count) {
    const float* lines = a.lines.data + at;
    const int64_t stride = a.lines.stride;
    for (int64_t s = a.begin; s < a.end; ++s) {
        const uint32_t* slice = a.slice + s * kSliceWords;
        const uint32_t* row = slice + 2;
        int64_t steps = slice[1];
        if (steps == 0 && !a.finish.first && !a.finish.last) continue;
        const uint16_t* index = a.index + slice[0];
        const float* coefficient = a.coefficient + slice[0];
        Vec sum[kSliceRows][P];
        // What stands for a row that is not there starts as a copy and is not kept.
#pragma GCC unroll 4
        for (int r = 0; r < kSliceRows; ++r) {
            start_row<P>(a.finish, row[r] == kNoRow ? row[0] : row[r], at, stride, sum[r]);
        }
        for (; steps > 0; --steps, index += kSliceRows, coefficient += kSliceRows) {
            __builtin_prefetch(coefficient + kAhead);
            __builtin_prefetch(index + kAhead);
#pragma GCC unroll 4
            for (int r = 0; r < kSliceRows; ++r) {
                const float* line = lines + index[r] * stride;
                const Vec weight = Vec::broadcast(coefficient[r]);
#pragma GCC unroll 16
                for (int p = 0; p < P; ++p) sum[r][p] = fma(weight, Vec::load(line + p * Vec::kLanes), sum[r][p]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < kSliceRows; ++r) {
            if (row[r] != kNoRow) finish_row<P>(a.finish, row[r], at, stride, count, sum[r]);
        }
    }
}

void sliced_rows(const SlicedRows& a) {
    // Four rows of so many vectors fill the registers.
    constexpr int kWidest = Vec::kRegisters == 32 ? 7 : 3;
    each_chunk<kWidest>(a.lines.positions,
                        [&](auto vectors, int64_t at, int64_t count) { sliced_chunk<vectors.value>(a, at, count); });
}

// M rows of one panel at once: every line is loaded once for M rows.
template <int P, int M>
void dense_tile(const DenseRows& a, int64_t row, const float* weight, int64_t panel, int64_t at, int64_t count) {
    const float* line = a.lines.data + at;
    const int64_t stride = a.lines.stride;
    Vec sum[M][P];
#pragma GCC unroll 32
    for (int m = 0; m < M; ++m) start_row<P>(a.finish, row + m, at, stride, sum[m]);
    for (int64_t k = 0; k < a.count; ++k, line += stride, weight += panel) {
        Vec value[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) value[p] = Vec::load(line + p * Vec::kLanes);
#pragma GCC unroll 32
        for (int m = 0; m < M; ++m) {
            const Vec factor = Vec::broadcast(weight[m]);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) sum[m][p] = fma(factor, value[p], sum[m][p]);
        }
    }
#pragma GCC unroll 32
    for (int m = 0; m < M; ++m) finish_row<P>(a.finish, row + m, at, stride, count, sum[m]);
}

template <int P, int M>
void dense_chunk(const DenseRows& a, int64_t at, int64_t count) {
    for (int64_t row = a.row_begin; row < a.row_end;) {
        const int64_t first = a.rows_from + (row - a.rows_from) / kPanelRows * kPanelRows;
        const int64_t panel = least(kPanelRows, a.rows_to - first);
        const float* weight = a.weight + (first - a.rows_from) * a.count + (row - first);
        const int64_t left = least(first + panel, a.row_end) - row;
        if (left >= M) {
            dense_tile<P, M>(a, row, weight, panel, at, count);
            row += M;
        } else if (M > 4 && left >= 4) {
            dense_tile<P, (M < 4 ? M : 4)>(a, row, weight, panel, at, count);
            row += 4;
        } else if (M > 2 && left >= 2) {
            dense_tile<P, (M < 2 ? M : 2)>(a, row, weight, panel, at, count);
            row += 2;
        } else {
            dense_tile<P, 1>(a, row, weight, panel, at, count);
            row += 1;
        }
    }
}

// Chunks of 1 to `kMost` vectors; the rows per tile fill the registers.
void dense_rows(const DenseRows& a) {
    constexpr bool many = Vec::kRegisters == 32;
    constexpr int kMost = many ? 6 : 3;
    constexpr int kRows[] = {many ? 24 : 12, many ? 12 : 6, many ? 8 : 4, 6, 4, 4};
    each_chunk<kMost>(a.lines.positions, [&](auto vectors, int64_t at, int64_t count) {
        dense_chunk<vectors.value, kRows[vectors.value - 1]>(a, at, count);
    });
}

// Few positions: vectors go along the outputs instead. N positions, V vectors of outputs.
template <int N, int V>
void outputs_tile(const DenseOutputs& a, int64_t row, const float* weight, int64_t at) {
    const float* line = a.lines.data + at;
    Vec sum[N][V];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[n][v] = Vec::broadcast(0.0f);
    }
    for (int64_t k = 0; k < a.count; ++k, line += a.lines.stride, weight += kPanelOutputs) {
        Vec factor[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) factor[v] = Vec::load(weight + v * Vec::kLanes);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const Vec value = Vec::broadcast(line[n]);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sum[n][v] = fma(factor[v], value, sum[n][v]);
        }
    }
    const int64_t rows = least(V * Vec::kLanes, a.row_end - row);
    const Finish& f = a.finish;
    for (int n = 0; n < N; ++n) {
        float values[V * Vec::kLanes];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[n][v].store(values + v * Vec::kLanes);
        for (int64_t m = 0; m < rows; ++m) {
            float value = values[m] + f.bias[row + m];
            if (f.residual) value += f.residual[(row + m) * f.residual_pitch + at + n];
            value = value < f.low ? f.low : value;
            f.output[(row + m) * f.pitch + at + n] = value > f.high ? f.high : value;
        }
    }
}

template <int V>
void outputs_panel(const DenseOutputs& a, int64_t row, const float* weight) {
    int64_t at = 0;
    for (; at + 4 <= a.lines.positions; at += 4) outputs_tile<4, V>(a, row, weight, at);
    if (at + 2 <= a.lines.positions) {
        outputs_tile<2, V>(a, row, weight, at);
        at += 2;
    }
    if (at < a.lines.positions) outputs_tile<1, V>(a, row, weight, at);
}

void dense_outputs(const DenseOutputs& a) {
    constexpr int kVectors = Vec::kRegisters == 32 ? 4 : 2;
    for (int64_t row = a.row_begin; row < a.row_end; row += kVectors * Vec::kLanes) {
        const int64_t panel = row / kPanelOutputs;
        outputs_panel<kVectors>(a, row, a.weight + panel * kPanelOutputs * a.count + row % kPanelOutputs);
    }
}

}  // namespace
