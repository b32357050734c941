// Running every step that is not a convolution. Each is a loop over the planes or images of its output.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "run.h"

namespace penni {
namespace {

struct At {
    const Running& running;
    const Step& step;
    Shape in, out;
    const float* input;
    float* output;
    const int64_t* attributes;

    void activate(float* data, int64_t count) const {
        if (step.activation != kNone) running.kernels.activate(data, count, step.activation, step.slope);
    }
    const float* floats(size_t tensor) const { return static_cast<const float*>(step.tensors[tensor].data); }
    const int32_t* index(size_t tensor) const { return static_cast<const int32_t*>(step.tensors[tensor].data); }
    double work() const { return static_cast<double>(std::max(in.size(), out.size()) * running.batch); }
    // One task for every channel of every image.
    template <typename Function>
    void each_plane(Function function) const {
        const int64_t planes = running.batch * out.channels;
        // Tasks of a useful size: handing out a plane of four pixels costs more than its work.
        const int64_t grain = std::max<int64_t>(1, 4096 / std::max(in.plane(), out.plane()));
        running.each((planes + grain - 1) / grain, work(), [&](int64_t task, int) {
            const int64_t end = std::min(planes, (task + 1) * grain);
            for (int64_t plane = task * grain; plane < end; ++plane) {
                function(plane / out.channels, plane % out.channels, output + plane * out.plane());
            }
        });
    }
    const float* plane(int64_t image, int64_t channel) const {
        return input + (image * in.channels + channel) * in.plane();
    }
};

void run_pool(const At& at) {
    const int64_t* a = at.attributes;
    Pool pool{};
    pool.height = at.in.height;
    pool.width = at.in.width;
    pool.out_height = at.out.height;
    pool.out_width = at.out.width;
    pool.kernel_h = a[0];
    pool.kernel_w = a[1];
    pool.stride_h = a[2];
    pool.stride_w = a[3];
    pool.top = a[4];
    pool.left = a[5];
    pool.bottom = a[6];
    pool.right = a[7];
    pool.dilation_h = a[8];
    pool.dilation_w = a[9];
    pool.maximum = a[10] != 0;
    pool.count_padding = a[11] != 0;
    pool.divisor = a[12];
    const bool pairs = a[0] == 2 && a[1] == 2 && a[2] == 2 && a[3] == 2 && at.in.height == 2 * at.out.height &&
                       at.in.width == 2 * at.out.width && !a[4] && !a[5] && (pool.maximum || !a[12] || a[12] == 4);
    if (pairs && a[8] == 1 && a[9] == 1) {
        const int64_t rows = at.running.batch * at.out.channels * at.out.height;
        const int64_t grain = std::max<int64_t>(1, 8192 / at.in.width);
        at.running.each((rows + grain - 1) / grain, at.work(), [&](int64_t task, int) {
            const int64_t from = task * grain, count = std::min(grain, rows - from);
            at.running.kernels.pool_pairs(at.input + from * 2 * at.in.width, count, at.in.width,
                                          at.output + from * at.out.width, pool.maximum);
        });
        return;
    }
    const int64_t reach = (pool.out_width - 1) * pool.stride_w + (pool.kernel_w - 1) * pool.dilation_w + 1;
    // The last vector of a row may read two more than it needs.
    pool.row_size = (std::max(reach, pool.left + pool.width) + 15) / 16 * 16 + 32;
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        thread_local std::vector<float> row;
        const auto size = static_cast<size_t>(pool.row_size * kPoolRows);
        if (row.size() < size) row.resize(size);
        Pool one = pool;
        one.row = row.data();
        one.input = at.plane(image, channel);
        one.output = out;
        at.running.kernels.pool(one);
    });
}

void run_adaptive_pool(const At& at) {
    const bool maximum = at.attributes[0] != 0;
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const float* in = at.plane(image, channel);
        if (!maximum && at.out.plane() == 1) {
            *out = at.running.kernels.sum(in, at.in.plane()) / static_cast<float>(at.in.plane());
            return;
        }
        for (int64_t row = 0; row < at.out.height; ++row) {
            const int64_t top = row * at.in.height / at.out.height;
            const int64_t bottom = ((row + 1) * at.in.height + at.out.height - 1) / at.out.height;
            for (int64_t column = 0; column < at.out.width; ++column) {
                const int64_t left = column * at.in.width / at.out.width;
                const int64_t right = ((column + 1) * at.in.width + at.out.width - 1) / at.out.width;
                float most = in[top * at.in.width + left], total = 0.0f;
                for (int64_t r = top; r < bottom; ++r) {
                    for (int64_t c = left; c < right; ++c) {
                        const float value = in[r * at.in.width + c];
                        most = value > most || value != value ? value : most;
                        total += value;
                    }
                }
                *out++ = maximum ? most : total / static_cast<float>((bottom - top) * (right - left));
            }
        }
    });
}

void run_binary(const At& at) {
    const Shape a = at.in, b = at.running.plan.values[at.step.inputs[1]].shape;
    const float* other = at.running.values[at.step.inputs[1]];
    const bool product = at.attributes[0] != 0;
    const auto whole = [&](const Shape& s) { return s.plane() == at.out.plane(); };
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const float* x = at.input + image * a.size() + (a.channels == 1 ? 0 : channel * a.plane());
        const float* y = other + image * b.size() + (b.channels == 1 ? 0 : channel * b.plane());
        const int64_t size = at.out.plane();
        const KernelTable& k = at.running.kernels;
        if (whole(a) && whole(b)) {
            (product ? k.multiply : k.add)(x, y, out, size);
        } else if (whole(a) && b.plane() == 1) {
            k.scale_shift(x, product ? *y : 1.0f, product ? 0.0f : *y, out, size);
        } else if (whole(b) && a.plane() == 1) {
            k.scale_shift(y, product ? *x : 1.0f, product ? 0.0f : *x, out, size);
        } else {
            for (int64_t i = 0; i < size; ++i) {
                const int64_t row = i / at.out.width, column = i % at.out.width;
                const float u = x[(a.height == 1 ? 0 : row) * a.width + (a.width == 1 ? 0 : column)];
                const float v = y[(b.height == 1 ? 0 : row) * b.width + (b.width == 1 ? 0 : column)];
                out[i] = product ? u * v : u + v;
            }
        }
        at.activate(out, size);
    });
}

void run_concat(const At& at) {
    int64_t channel = 0;
    for (const int64_t value : at.step.inputs) {
        const int64_t size = at.running.plan.values[value].shape.size();
        const float* from = at.running.values[value];
        float* to = at.output + channel * at.out.plane();
        for (int64_t image = 0; image < at.running.batch; ++image) {
            std::memcpy(to + image * at.out.size(), from + image * size, static_cast<size_t>(size) * sizeof(float));
        }
        channel += at.running.plan.values[value].shape.channels;
    }
}

void run_take_plane(const At& at) {
    const int32_t* index = at.index(0);
    const float fill = attribute_float(at.step, 1);
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const int64_t source = channel - at.attributes[0];
        if (source < 0 || source >= at.in.channels) {
            std::fill(out, out + at.out.plane(), fill);
            return;
        }
        const float* in = at.plane(image, source);
        for (int64_t i = 0; i < at.out.plane(); ++i) out[i] = index[i] < 0 ? fill : in[index[i]];
    });
}

void run_gather(const At& at) {
    const int32_t* index = at.index(0);
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const size_t bytes = static_cast<size_t>(at.out.plane()) * sizeof(float);
        if (index[channel] < 0) {
            std::memset(out, 0, bytes);
        } else {
            std::memcpy(out, at.plane(image, index[channel]), bytes);
        }
    });
}

void run_take(const At& at) {
    const int32_t* index = at.index(0);
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const float* in = at.input + image * at.in.size();
        const int32_t* from = index + channel * at.out.plane();
        for (int64_t i = 0; i < at.out.plane(); ++i) out[i] = from[i] < 0 ? 0.0f : in[from[i]];
    });
}

void run_activation(const At& at) {
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        std::memcpy(out, at.plane(image, channel), static_cast<size_t>(at.out.plane()) * sizeof(float));
        at.activate(out, at.out.plane());
    });
}

void run_affine(const At& at) {
    const float *scale = at.floats(0), *shift = at.floats(1);
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        at.running.kernels.scale_shift(at.plane(image, channel), scale[channel], shift[channel], out, at.out.plane());
        at.activate(out, at.out.plane());
    });
}

void run_layer_norm(const At& at) {
    at.running.each(at.running.batch, at.work(), [&](int64_t image, int) {
        float* out = at.output + image * at.out.size();
        at.running.kernels.layer_norm(at.plane(image, 0), out, at.in.channels, at.in.plane(), at.floats(0), at.floats(1),
                                      attribute_float(at.step, 3));
        at.activate(out, at.out.size());
    });
}

void run_group_norm(const At& at) {
    const int64_t groups = at.attributes[0], channels = at.in.channels / groups, size = channels * at.in.plane();
    const float *scale = at.floats(0), *shift = at.floats(1);
    const float epsilon = attribute_float(at.step, 3);
    at.running.each(at.running.batch * groups, at.work(), [&](int64_t task, int) {
        const float* in = at.input + task * size;
        float* out = at.output + task * size;
        const float mean = at.running.kernels.sum(in, size) / static_cast<float>(size);
        double square = 0.0;
        for (int64_t i = 0; i < size; ++i) square += static_cast<double>(in[i] - mean) * (in[i] - mean);
        const float factor = 1.0f / std::sqrt(static_cast<float>(square / static_cast<double>(size)) + epsilon);
        for (int64_t c = 0; c < channels; ++c) {
            const int64_t channel = task % groups * channels + c;
            const float multiple = factor * scale[channel];
            at.running.kernels.scale_shift(in + c * at.in.plane(), multiple, shift[channel] - mean * multiple,
                                           out + c * at.in.plane(), at.in.plane());
        }
        at.activate(out, size);
    });
}

void run_softmax(const At& at) {
    const Shape& s = at.in;
    const bool logarithm = at.attributes[1] != 0;
    const int64_t axis = at.attributes[0];
    const int64_t count = axis == 0 ? s.channels : axis == 1 ? s.height : s.width;
    const int64_t stride = axis == 0 ? s.plane() : axis == 1 ? s.width : 1;
    const int64_t outer = at.running.batch * s.size() / (count * stride);
    at.running.each(outer, at.work(), [&](int64_t task, int) {
        const float* in = at.input + task * count * stride;
        float* out = at.output + task * count * stride;
        if (!logarithm) {
            at.running.kernels.softmax(in, out, count, stride, stride);
            return;
        }
        for (int64_t column = 0; column < stride; ++column) {
            float most = in[column];
            double total = 0.0;
            for (int64_t i = 1; i < count; ++i) most = std::max(most, in[i * stride + column]);
            for (int64_t i = 0; i < count; ++i) total += std::exp(static_cast<double>(in[i * stride + column] - most));
            const float shift = most + static_cast<float>(std::log(total));
            for (int64_t i = 0; i < count; ++i) out[i * stride + column] = in[i * stride + column] - shift;
        }
    });
}

void run_bilinear(const At& at) {
    const int32_t *above = at.index(0), *below = at.index(1), *before = at.index(3), *after = at.index(4);
    const float *down = at.floats(2), *right = at.floats(5);
    at.each_plane([&](int64_t image, int64_t channel, float* out) {
        const float* in = at.plane(image, channel);
        for (int64_t row = 0; row < at.out.height; ++row) {
            const float* upper = in + above[row] * at.in.width;
            const float* lower = in + below[row] * at.in.width;
            for (int64_t column = 0; column < at.out.width; ++column) {
                const int32_t p = before[column], q = after[column];
                const float u = upper[p] * (1.0f - down[row]) + lower[p] * down[row];
                const float v = upper[q] * (1.0f - down[row]) + lower[q] * down[row];
                *out++ = u * (1.0f - right[column]) + v * right[column];
            }
        }
    });
}

void run_mean(const At& at) {
    const Shape &in = at.in, &out = at.out;
    const int64_t* over = at.attributes;
    const double share = static_cast<double>(out.size()) / static_cast<double>(in.size());
    at.running.each(at.running.batch, at.work(), [&](int64_t image, int) {
        std::vector<double> total(static_cast<size_t>(out.size()), 0.0);
        const float* from = at.input + image * in.size();
        for (int64_t c = 0; c < in.channels; ++c) {
            for (int64_t row = 0; row < in.height; ++row) {
                double* to = total.data() + ((over[0] ? 0 : c) * out.height + (over[1] ? 0 : row)) * out.width;
                for (int64_t column = 0; column < in.width; ++column) to[over[2] ? 0 : column] += *from++;
            }
        }
        float* result = at.output + image * out.size();
        for (int64_t i = 0; i < out.size(); ++i) result[i] = static_cast<float>(total[i] * share);
    });
}

void run_transposed_convolution(const At& at) {
    const int64_t* a = at.attributes;
    const int64_t kernel_h = a[0], kernel_w = a[1], stride_h = a[2], stride_w = a[3], top = a[4], left = a[5];
    const int64_t dilation_h = a[6], dilation_w = a[7], groups = a[8];
    const int64_t each_in = at.in.channels / groups, each_out = at.out.channels / groups;
    at.running.each(at.running.batch * at.out.channels, at.work() * 16, [&](int64_t task, int) {
        const int64_t image = task / at.out.channels, channel = task % at.out.channels, group = channel / each_out;
        float* out = at.output + task * at.out.plane();
        std::fill(out, out + at.out.plane(), at.floats(1)[channel]);
        for (int64_t i = group * each_in; i < (group + 1) * each_in; ++i) {
            const float* in = at.plane(image, i);
            const float* weight = at.floats(0) + (i * each_out + channel % each_out) * kernel_h * kernel_w;
            for (int64_t tap = 0; tap < kernel_h * kernel_w; ++tap) {
                if (weight[tap] == 0.0f) continue;
                const int64_t down = tap / kernel_w * dilation_h - top, right = tap % kernel_w * dilation_w - left;
                // Columns whose target lies inside the output.
                const int64_t first = right < 0 ? (-right + stride_w - 1) / stride_w : 0;
                const int64_t space = at.out.width - 1 - right;
                const int64_t end = space < 0 ? 0 : std::min(at.in.width, space / stride_w + 1);
                for (int64_t row = 0; row < at.in.height; ++row) {
                    const int64_t target = row * stride_h + down;
                    if (target < 0 || target >= at.out.height) continue;
                    const float* from = in + row * at.in.width;
                    float* to = out + target * at.out.width + right;
                    for (int64_t column = first; column < end; ++column) {
                        to[column * stride_w] += weight[tap] * from[column];
                    }
                }
            }
        }
        at.activate(out, at.out.plane());
    });
}

}  // namespace

void run_simple(const Running& running, const Step& step) {
    const At at{running,
                step,
                running.plan.values[step.inputs[0]].shape,
                running.plan.values[step.output].shape,
                running.values[step.inputs[0]],
                running.values[step.output],
                step.attributes.data()};
    switch (step.op) {
        case Op::kPool: return run_pool(at);
        case Op::kAdaptivePool: return run_adaptive_pool(at);
        case Op::kBinary: return run_binary(at);
        case Op::kConcat: return run_concat(at);
        case Op::kTakePlane: return run_take_plane(at);
        case Op::kGather: return run_gather(at);
        case Op::kTake: return run_take(at);
        case Op::kActivation: return run_activation(at);
        case Op::kAffine: return run_affine(at);
        case Op::kLayerNorm: return run_layer_norm(at);
        case Op::kGroupNorm: return run_group_norm(at);
        case Op::kSoftmax: return run_softmax(at);
        case Op::kBilinear: return run_bilinear(at);
        case Op::kMean: return run_mean(at);
        case Op::kTransposedConvolution: return run_transposed_convolution(at);
        default: return;  // a reshape has nothing to do
    }
}

}  // namespace penni
