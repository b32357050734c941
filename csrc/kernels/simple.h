// Everything that is not a convolution: activations, pooling, sums, normalisation.
#pragma once
#include "table.h"
#include "vec.h"

namespace {

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

void pool(const Pool& a) {
    for (int64_t row = 0; row < a.out_height; ++row) {
        for (int64_t column = 0; column < a.out_width; ++column) {
            const int64_t y = row * a.stride_h - a.top, x = column * a.stride_w - a.left;
            float most = -__builtin_inff(), total = 0.0f;
            int64_t inside = 0;
            for (int64_t i = 0; i < a.kernel_h; ++i) {
                const int64_t r = y + i * a.dilation_h;
                if (r < 0 || r >= a.height) continue;
                const float* line = a.input + r * a.width;
                for (int64_t j = 0; j < a.kernel_w; ++j) {
                    const int64_t c = x + j * a.dilation_w;
                    if (c < 0 || c >= a.width) continue;
                    most = line[c] > most || line[c] != line[c] ? line[c] : most;
                    total += line[c];
                    ++inside;
                }
            }
            float value = most;
            if (!a.maximum) {
                // A window that hangs over the padded edge (ceil mode) divides by the part within the padding.
                const int64_t high = least(y + a.kernel_h, a.height + a.bottom) - y;
                const int64_t wide = least(x + a.kernel_w, a.width + a.right) - x;
                const int64_t divisor = a.divisor ? a.divisor : a.count_padding ? high * wide : inside;
                value = divisor > 0 ? total / static_cast<float>(divisor) : 0.0f;
            }
            a.output[row * a.out_width + column] = value;
        }
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
