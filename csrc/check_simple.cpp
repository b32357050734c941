// The checks of every step that is not a convolution.
#include <algorithm>

#include "plan.h"

namespace penni {
namespace {

void expect(const Step& step, int64_t at, size_t inputs, size_t attributes, size_t tensors) {
    if (step.inputs.size() != inputs || step.attributes.size() != attributes || step.tensors.size() != tensors) {
        refuse(at, "has the wrong number of inputs, attributes or tensors");
    }
}

bool same(const Shape& a, const Shape& b) {
    return a.channels == b.channels && a.height == b.height && a.width == b.width;
}

void set_activation(Step& step, int64_t at, size_t attribute) {
    const int64_t kind = step.attributes[attribute];
    if (kind < 0 || kind >= kActivations) refuse(at, "has an unknown activation");
    step.activation = static_cast<int32_t>(kind);
    step.slope = attribute_float(step, attribute + 1);
}

void check_sizes(const Step& step, int64_t at, size_t from, size_t to, int64_t least) {
    for (size_t i = from; i < to; ++i) {
        if (step.attributes[i] < least || step.attributes[i] > (1 << 24)) refuse(at, "has an impossible attribute");
    }
}

void check_index(const Step& step, int64_t at, size_t tensor, int64_t count, int64_t lowest, int64_t end) {
    const Tensor& index = step.tensors[tensor];
    if (index.count != count) refuse(at, "has an index of another size than its output");
    const int32_t* data = static_cast<const int32_t*>(index.data);
    for (int64_t i = 0; i < count; ++i) {
        if (data[i] < lowest || data[i] >= end) refuse(at, "has an index outside its input");
    }
}

void check_count(const Step& step, int64_t at, size_t tensor, int64_t count) {
    if (step.tensors[tensor].count != count) refuse(at, "has a tensor of another size than its values");
}

void check_pool(const Step& step, int64_t at, const Shape& in, const Shape& out) {
    expect(step, at, 1, 13, 0);
    check_sizes(step, at, 0, 4, 1);
    check_sizes(step, at, 4, 8, 0);
    check_sizes(step, at, 8, 10, 1);
    check_sizes(step, at, 10, 13, 0);
    if (in.channels != out.channels) refuse(at, "changes the number of channels");
    const auto& a = step.attributes;
    const double reach = static_cast<double>(out.width) * static_cast<double>(a[3]) +
                         static_cast<double>(a[1]) * static_cast<double>(a[9]);
    if (reach > (1 << 26)) refuse(at, "has an impossible attribute");
}

void check_broadcast(const Step& step, int64_t at, const Plan& plan, const Shape& out) {
    for (const int64_t input : step.inputs) {
        const Shape& in = plan.values[input].shape;
        if ((in.channels != 1 && in.channels != out.channels) || (in.height != 1 && in.height != out.height) ||
            (in.width != 1 && in.width != out.width)) {
            refuse(at, "has inputs that do not broadcast");
        }
    }
}

void check_concat(const Step& step, int64_t at, const Plan& plan, const Shape& out) {
    if (!step.attributes.empty() || !step.tensors.empty()) {
        refuse(at, "has the wrong number of inputs, attributes or tensors");
    }
    int64_t channels = 0;
    for (const int64_t input : step.inputs) {
        const Shape& in = plan.values[input].shape;
        if (in.height != out.height || in.width != out.width) refuse(at, "joins planes of different sizes");
        channels += in.channels;
    }
    if (channels != out.channels) refuse(at, "joins another number of channels than it gives");
}

void check_transposed(const Step& step, int64_t at, const Shape& in, const Shape& out) {
    expect(step, at, 1, 11, 2);
    check_sizes(step, at, 0, 4, 1);   // kernel, stride
    check_sizes(step, at, 4, 6, 0);   // top, left
    check_sizes(step, at, 6, 9, 1);   // dilation, groups
    const int64_t groups = step.attributes[8];
    if (in.channels % groups || out.channels % groups) refuse(at, "has channels that do not divide into its groups");
    const double weights = static_cast<double>(in.channels) * static_cast<double>(out.channels / groups) *
                           static_cast<double>(step.attributes[0]) * static_cast<double>(step.attributes[1]);
    if (static_cast<double>(step.tensors[0].count) != weights) refuse(at, "has weights of another size than its rows");
    check_count(step, at, 1, out.channels);
}

}  // namespace

void check_simple(Step& step, int64_t at, const Plan& plan) {
    const Shape in = plan.values[step.inputs[0]].shape, out = plan.values[step.output].shape;
    switch (step.op) {
        case Op::kPool: return check_pool(step, at, in, out);
        case Op::kAdaptivePool:
            expect(step, at, 1, 1, 0);
            if (in.channels != out.channels) refuse(at, "changes the number of channels");
            return;
        case Op::kBinary:
            expect(step, at, 2, 3, 0);
            check_sizes(step, at, 0, 1, 0);
            set_activation(step, at, 1);
            return check_broadcast(step, at, plan, out);
        case Op::kConcat: return check_concat(step, at, plan, out);
        case Op::kTakePlane:
            expect(step, at, 1, 2, 1);
            // Channel c of the output is channel c - before of the input, or filled.
            check_sizes(step, at, 0, 1, 0);
            return check_index(step, at, 0, out.plane(), -1, in.plane());
        case Op::kGather:
            expect(step, at, 1, 0, 1);
            if (in.plane() != out.plane()) refuse(at, "changes the size of its planes");
            return check_index(step, at, 0, out.channels, -1, in.channels);
        case Op::kTake: expect(step, at, 1, 0, 1); return check_index(step, at, 0, out.size(), -1, in.size());
        case Op::kReshape:
            expect(step, at, 1, 0, 0);
            if (in.size() != out.size()) refuse(at, "changes the number of elements");
            return;
        case Op::kActivation:
            expect(step, at, 1, 2, 0);
            set_activation(step, at, 0);
            if (!same(in, out)) refuse(at, "changes its shape");
            return;
        case Op::kAffine:
            expect(step, at, 1, 2, 2);
            set_activation(step, at, 0);
            check_count(step, at, 0, in.channels);
            check_count(step, at, 1, in.channels);
            if (!same(in, out)) refuse(at, "changes its shape");
            return;
        case Op::kLayerNorm:
        case Op::kGroupNorm:
            expect(step, at, 1, 4, 2);
            check_sizes(step, at, 0, 1, 1);
            set_activation(step, at, 1);
            check_count(step, at, 0, in.channels);
            check_count(step, at, 1, in.channels);
            if (!same(in, out)) refuse(at, "changes its shape");
            if (in.channels % step.attributes[0]) refuse(at, "has channels that do not divide into its groups");
            return;
        case Op::kSoftmax:
            expect(step, at, 1, 2, 0);
            if (step.attributes[0] < 0 || step.attributes[0] > 2) refuse(at, "has no such axis");
            if (!same(in, out)) refuse(at, "changes its shape");
            return;
        case Op::kBilinear: {
            expect(step, at, 1, 0, 6);
            if (in.channels != out.channels) refuse(at, "changes the number of channels");
            for (size_t i = 0; i < 2; ++i) {
                check_index(step, at, i, out.height, 0, in.height);
                check_index(step, at, 3 + i, out.width, 0, in.width);
            }
            check_count(step, at, 2, out.height);
            return check_count(step, at, 5, out.width);
        }
        case Op::kMean:
            expect(step, at, 1, 3, 0);
            if (out.channels != (step.attributes[0] ? 1 : in.channels) ||
                out.height != (step.attributes[1] ? 1 : in.height) || out.width != (step.attributes[2] ? 1 : in.width)) {
                refuse(at, "has an output that does not fit its input");
            }
            return;
        case Op::kTransposedConvolution:
            check_transposed(step, at, in, out);
            return set_activation(step, at, 9);
        default: refuse(at, "has an unknown operator");
    }
}

}  // namespace penni
