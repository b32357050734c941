// Everything that is not a convolution: activations, pooling, sums, normalisation.
#pragma once
#include "table.h"
#include "vec.h"

namespace {

using penni::kPoolRows;
using penni::Pool;

// e^x to a few units in the last place; below -87 it gives the smallest normal number's neighbourhood, above 88 it saturates.
PENNI_INLINE Vec exponential(Vec x) {
    x = min(Vec::broadcast(88.3f), max(Vec::broadcast(-87.3f), x));
    const Vec n = round(x * Vec::broadcast(1.44269504f));
    Vec r = fma(n, Vec::broadcast(-0.693359375f), x);
    r = fma(n, Vec::broadcast(2.12194440e-4f), r);
    Vec p = Vec::broadcast(1.9875691500e-4f);
    p = fma(p, r, Vec::broadcast(1.3981999507e-3f));
    p = fma(p, r, Vec::broadcast(8.3334519073e-3f));
    p = fma(p, r, Vec::broadcast(4.1665795894e-2f));
    p = fma(p, r, Vec::broadcast(1.6666665459e-1f));
    p = fma(p, r, Vec::broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r + Vec::broadcast(1.0f));
    return times_power_of_two(p, n);
}

PENNI_INLINE Vec sigmoid(Vec x) {
    const Vec one = Vec::broadcast(1.0f);
    return one / (one + exponential(Vec::broadcast(0.0f) - x));
}

PENNI_INLINE Vec hyperbolic_tangent(Vec x) {
    const Vec one = Vec::broadcast(1.0f), size = copy_sign(x, one);
    // Near zero the quotient cancels: an odd polynomial serves there.
    const Vec power = exponential(size * Vec::broadcast(-2.0f));
    const Vec far = copy_sign((one - power) / (one + power), x);
    const Vec s = x * x;
    Vec p = Vec::broadcast(-5.70498872745e-3f);
    p = fma(p, s, Vec::broadcast(2.06390887954e-2f));
    p = fma(p, s, Vec::broadcast(-5.37397155531e-2f));
    p = fma(p, s, Vec::broadcast(1.33314422036e-1f));
    p = fma(p, s, Vec::broadcast(-3.33332819422e-1f));
    const Vec near = fma(p * s, x, x);
    float a[Vec::kLanes], b[Vec::kLanes], c[Vec::kLanes];
    far.store(a);
    near.store(b);
    size.store(c);
    for (int64_t i = 0; i < Vec::kLanes; ++i) a[i] = c[i] < 0.625f ? b[i] : a[i];
    return Vec::load(a);
}

// Abramowitz and Stegun 7.1.26 has an absolute error below 1.5e-7.
PENNI_INLINE Vec error_function(Vec x) {
    const Vec one = Vec::broadcast(1.0f), size = copy_sign(x, one);
    const Vec t = one / fma(Vec::broadcast(0.3275911f), size, one);
    Vec p = Vec::broadcast(1.061405429f);
    p = fma(p, t, Vec::broadcast(-1.453152027f));
    p = fma(p, t, Vec::broadcast(1.421413741f));
    p = fma(p, t, Vec::broadcast(-0.284496736f));
    p = fma(p, t, Vec::broadcast(0.254829592f));
    const Vec tail = p * t * exponential(Vec::broadcast(0.0f) - x * x);
    return copy_sign(one - tail, x);
}

template <typename Function>
PENNI_INLINE void each(float* data, int64_t count, Function function) {
    int64_t at = 0;
    for (; at + Vec::kLanes <= count; at += Vec::kLanes) function(Vec::load(data + at)).store(data + at);
    if (at < count) function(Vec::load(data + at, 0, count - at)).store(data + at, count - at);
}

void activate(float* data, int64_t count, int32_t kind, float slope) {
    const Vec zero = Vec::broadcast(0.0f), one = Vec::broadcast(1.0f), half = Vec::broadcast(0.5f);
    const Vec six = Vec::broadcast(6.0f), three = Vec::broadcast(3.0f), sixth = Vec::broadcast(1.0f / 6.0f);
    switch (kind) {
        case penni::kRelu: each(data, count, [&](Vec x) __attribute__((always_inline)) { return max(zero, x); }); break;
        case penni::kRelu6: each(data, count, [&](Vec x) __attribute__((always_inline)) { return min(six, max(zero, x)); }); break;
        case penni::kLeaky: {
            const Vec factor = Vec::broadcast(slope);
            each(data, count, [&](Vec x) __attribute__((always_inline)) { return fma(min(zero, x), factor, max(zero, x)); });
            break;
        }
        case penni::kSilu: each(data, count, [&](Vec x) __attribute__((always_inline)) { return x * sigmoid(x); }); break;
        case penni::kHardswish:
            each(data, count, [&](Vec x) __attribute__((always_inline)) { return x * min(six, max(zero, x + three)) * sixth; });
            break;
        case penni::kHardsigmoid:
            each(data, count, [&](Vec x) __attribute__((always_inline)) { return min(six, max(zero, x + three)) * sixth; });
            break;
        case penni::kSigmoid: each(data, count, [&](Vec x) __attribute__((always_inline)) { return sigmoid(x); }); break;
        case penni::kGelu:
            each(data, count, [&](Vec x) __attribute__((always_inline)) {
                return half * x * (one + error_function(x * Vec::broadcast(0.70710678f)));
            });
            break;
        case penni::kTanh: each(data, count, [&](Vec x) __attribute__((always_inline)) { return hyperbolic_tangent(x); }); break;
        case penni::kGeluTanh:
            each(data, count, [&](Vec x) __attribute__((always_inline)) {
                const Vec inner = Vec::broadcast(0.79788456f) * fma(x * x * x, Vec::broadcast(0.044715f), x);
                return half * x * (one + hyperbolic_tangent(inner));
            });
            break;
        case penni::kElu: {
            const Vec factor = Vec::broadcast(slope);
            each(data, count, [&](Vec x) __attribute__((always_inline)) {
                return fma(exponential(min(zero, x)) - one, factor, max(zero, x));
            });
            break;
        }
        default: break;
    }
}

// One output row from `from`, which holds the reduced rows of the window with `margin` columns on either side.
template <bool Maximum, int Step>
PENNI_INLINE void pool_columns(const Pool& a, const float* from, float* out, int64_t count) {
    const int64_t step = Step ? Step : a.stride_w;
    int64_t done = 0;
    if constexpr (Step == 2) {
        // Two vectors of the row give one of every second column.
        const int64_t reach = (a.kernel_w - 1) * a.dilation_w + 2 * Vec::kLanes;
        for (; done < count && 2 * done + reach <= a.row_size; done += Vec::kLanes) {
            Vec total = evens(Vec::load(from + 2 * done), Vec::load(from + 2 * done + Vec::kLanes));
            for (int64_t j = 1; j < a.kernel_w; ++j) {
                const float* shifted = from + j * a.dilation_w + 2 * done;
                const Vec value = evens(Vec::load(shifted), Vec::load(shifted + Vec::kLanes));
                total = Maximum ? max(total, value) : total + value;
            }
            if (done + Vec::kLanes <= count) {
                total.store(out + done);
            } else {
                total.store(out + done, count - done);
            }
        }
    }
    for (int64_t c = done; c < count; ++c) out[c] = from[c * step];
    for (int64_t j = 1; j < a.kernel_w; ++j) {
        const float* shifted = from + j * a.dilation_w;
        for (int64_t c = done; c < count; ++c) {
            const float value = shifted[c * step];
            if (Maximum) {
                out[c] = value > out[c] || value != value ? value : out[c];
            } else {
                out[c] += value;
            }
        }
    }
}

// What changes nothing: columns outside the image hold it, and those of windows past its end.
template <bool Maximum>
PENNI_INLINE Vec neutral_value() { return Vec::broadcast(Maximum ? -__builtin_inff() : 0.0f); }

// The rows of an output row's windows, reduced to one.
template <bool Maximum>
PENNI_INLINE void pool_rows(const Pool& a, int64_t row, float* reduced) {
    const int64_t y = row * a.stride_h - a.top;
    float* const image = reduced + a.left;
    for (int64_t at = 0; at < a.width; at += Vec::kLanes) {
        const int64_t count = least(Vec::kLanes, a.width - at);
        Vec total = neutral_value<Maximum>();
        for (int64_t i = 0; i < a.kernel_h; ++i) {
            const int64_t r = y + i * a.dilation_h;
            if (r < 0 || r >= a.height) continue;
            const float* line = a.input + r * a.width + at;
            const Vec value = count == Vec::kLanes ? Vec::load(line) : Vec::load(line, 0, count);
            // The running maximum comes first: the instruction then hands on a value that is not a number.
            total = Maximum ? max(total, value) : total + value;
        }
        if (count == Vec::kLanes) {
            total.store(image + at);
        } else {
            total.store(image + at, count);
        }
    }
}

// The output row, from its reduced row.
template <bool Maximum>
PENNI_INLINE void pool_row(const Pool& a, int64_t row, const float* reduced) {
    float* out = a.output + row * a.out_width;
    switch (a.stride_w) {
        case 1: pool_columns<Maximum, 1>(a, reduced, out, a.out_width); break;
        case 2: pool_columns<Maximum, 2>(a, reduced, out, a.out_width); break;
        default: pool_columns<Maximum, 0>(a, reduced, out, a.out_width); break;
    }
    if (Maximum) return;
    const int64_t y = row * a.stride_h - a.top;
    for (int64_t column = 0; column < a.out_width; ++column) {
        const int64_t x = column * a.stride_w - a.left;
        int64_t divisor = a.divisor;
        if (!divisor && a.count_padding) {
            // A window that hangs over the padded edge (ceil mode) divides by the part within the padding.
            divisor = (least(y + a.kernel_h, a.height + a.bottom) - y) *
                      (least(x + a.kernel_w, a.width + a.right) - x);
        } else if (!divisor) {
            divisor = (least(y + a.kernel_h, a.height) - greatest(y, 0)) *
                      (least(x + a.kernel_w, a.width) - greatest(x, 0));
        }
        out[column] = divisor > 0 ? out[column] / static_cast<float>(divisor) : 0.0f;
    }
}

template <bool Maximum>
void pool_plane(const Pool& a) {
    const Vec neutral = neutral_value<Maximum>();
    for (int64_t at = 0; at < kPoolRows * a.row_size; at += Vec::kLanes) neutral.store(a.row + at);
    // Some rows ahead: what was just stored cannot yet be read at another alignment without a wait.
    for (int64_t ahead = 0; ahead < a.out_height; ahead += kPoolRows) {
        const int64_t end = least(a.out_height, ahead + kPoolRows);
        for (int64_t row = ahead; row < end; ++row) pool_rows<Maximum>(a, row, a.row + (row - ahead) * a.row_size);
        for (int64_t row = ahead; row < end; ++row) pool_row<Maximum>(a, row, a.row + (row - ahead) * a.row_size);
    }
}

void pool(const Pool& a) {
    if (a.maximum) {
        pool_plane<true>(a);
    } else {
        pool_plane<false>(a);
    }
}

// Pairs of rows of an even width, whatever plane they belong to: 2×2 windows, two apart, without padding.
template <bool Maximum>
void pool_pairs_of(const float* in, int64_t pairs, int64_t width, float* out) {
    constexpr int64_t kFloats = 512;
    alignas(64) float joined[kFloats + 2 * Vec::kLanes];
    const Vec quarter = Vec::broadcast(0.25f);
    const auto join = [](Vec a, Vec b) __attribute__((always_inline)) { return Maximum ? max(a, b) : a + b; };
    const int64_t piece = least(width, kFloats), together = greatest(1, kFloats / width);
    for (int64_t pair = 0; pair < pairs; pair += together) {
        const int64_t rows = least(together, pairs - pair);
        for (int64_t from = 0; from < width; from += piece) {
            const int64_t columns = least(piece, width - from);
            // Rows follow one another without a gap: what a vector writes beyond its row, the next row overwrites.
            for (int64_t row = 0; row < rows; ++row) {
                const float* upper = in + (pair + row) * 2 * width + from;
                for (int64_t at = 0; at < columns; at += Vec::kLanes) {
                    const int64_t count = least(Vec::kLanes, columns - at);
                    const Vec a = count == Vec::kLanes ? Vec::load(upper + at) : Vec::load(upper + at, 0, count);
                    const Vec b = count == Vec::kLanes ? Vec::load(upper + width + at)
                                                       : Vec::load(upper + width + at, 0, count);
                    join(a, b).store(joined + row * columns + at);
                }
            }
            float* to = out + (pair * width + from) / 2;
            const int64_t count = rows * columns / 2;
            for (int64_t at = 0; at < count; at += Vec::kLanes) {
                const Vec a = Vec::load(joined + 2 * at), b = Vec::load(joined + 2 * at + Vec::kLanes);
                const Vec value = join(evens(a, b), odds(a, b));
                const Vec result = Maximum ? value : value * quarter;
                if (count - at >= Vec::kLanes) {
                    result.store(to + at);
                } else {
                    result.store(to + at, count - at);
                }
            }
        }
    }
}

void pool_pairs(const float* in, int64_t pairs, int64_t width, float* out, bool maximum) {
    if (maximum) {
        pool_pairs_of<true>(in, pairs, width, out);
    } else {
        pool_pairs_of<false>(in, pairs, width, out);
    }
}

void add(const float* a, const float* b, float* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void multiply(const float* a, const float* b, float* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
}

void scale_shift(const float* in, float scale, float shift, float* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i] * scale + shift;
}

float sum(const float* data, int64_t count) {
    Vec total = Vec::broadcast(0.0f);
    int64_t at = 0;
    for (; at + Vec::kLanes <= count; at += Vec::kLanes) total = total + Vec::load(data + at);
    if (at < count) total = total + Vec::load(data + at, 0, count - at);
    return total.sum();
}

// Over `count` numbers `stride` apart, for each of `columns` neighbours.
void softmax(const float* in, float* out, int64_t count, int64_t stride, int64_t columns) {
    for (int64_t column = 0; column < columns; ++column) {
        const float* from = in + column;
        float* to = out + column;
        float most = from[0], total = 0.0f;
        for (int64_t i = 1; i < count; ++i) most = from[i * stride] > most ? from[i * stride] : most;
        for (int64_t i = 0; i < count; ++i) {
            to[i * stride] = __builtin_expf(from[i * stride] - most);
            total += to[i * stride];
        }
        for (int64_t i = 0; i < count; ++i) to[i * stride] /= total;
    }
}

// Normalise over channels at every position, as ConvNeXt does; `scale` and `shift` per channel.
void layer_norm(const float* in, float* out, int64_t channels, int64_t positions, const float* scale,
                const float* shift, float epsilon) {
    constexpr int64_t kAtOnce = 64;
    for (int64_t from = 0; from < positions; from += kAtOnce) {
        const int64_t count = least(kAtOnce, positions - from);
        float mean[kAtOnce], square[kAtOnce];
        for (int64_t i = 0; i < count; ++i) mean[i] = square[i] = 0.0f;
        for (int64_t c = 0; c < channels; ++c) {
            const float* line = in + c * positions + from;
            for (int64_t i = 0; i < count; ++i) mean[i] += line[i];
        }
        for (int64_t i = 0; i < count; ++i) mean[i] /= static_cast<float>(channels);
        for (int64_t c = 0; c < channels; ++c) {
            const float* line = in + c * positions + from;
            for (int64_t i = 0; i < count; ++i) square[i] += (line[i] - mean[i]) * (line[i] - mean[i]);
        }
        for (int64_t i = 0; i < count; ++i) {
            square[i] = 1.0f / __builtin_sqrtf(square[i] / static_cast<float>(channels) + epsilon);
        }
        for (int64_t c = 0; c < channels; ++c) {
            const float* line = in + c * positions + from;
            float* to = out + c * positions + from;
            for (int64_t i = 0; i < count; ++i) to[i] = (line[i] - mean[i]) * square[i] * scale[c] + shift[c];
        }
    }
}

}  // namespace
