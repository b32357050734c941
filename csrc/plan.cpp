// Decoding of a plan, and the arena: which value lives where.
#include "plan.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace penni {
namespace {

constexpr int64_t kMagic = 0x696e6e6570;
constexpr int64_t kFormat = 1;
constexpr int64_t kMostItems = 1 << 20;
constexpr int64_t kMostFloats = int64_t{1} << 31;

class Reader {
  public:
    Reader(const int64_t* words, int64_t count) : words_(words), count_(count) {}
    int64_t next() {
        if (at_ >= count_) throw std::invalid_argument("the plan is cut short");
        return words_[at_++];
    }
    int64_t within(int64_t low, int64_t high, const char* what) {
        const int64_t value = next();
        if (value < low || value > high) throw std::invalid_argument(std::string("the plan has an impossible ") + what);
        return value;
    }
    bool done() const { return at_ == count_; }

  private:
    const int64_t* words_;
    int64_t count_, at_ = 0;
};

int64_t element_size(Op op, size_t tensor) {
    if (op == Op::kConvolution) return tensor == 5 ? 2 : 4;
    return 4;
}

Tensor read_tensor(Reader& reader, const Step& step, const uint8_t* weights, int64_t bytes) {
    const int64_t offset = reader.within(0, bytes, "tensor offset");
    const int64_t count = reader.within(0, bytes, "tensor size");
    const int64_t size = element_size(step.op, step.tensors.size());
    if (offset % 4 || count > (bytes - offset) / size) {
        throw std::invalid_argument("a tensor of the plan lies outside the weights");
    }
    return {weights + offset, count};
}

Step read_step(Reader& reader, int64_t values, const uint8_t* weights, int64_t bytes) {
    Step step;
    step.op = static_cast<Op>(reader.within(0, static_cast<int64_t>(Op::kOps) - 1, "operator"));
    const int64_t inputs = reader.within(1, 4096, "number of inputs");
    for (int64_t i = 0; i < inputs; ++i) step.inputs.push_back(reader.within(0, values - 1, "value"));
    step.output = reader.within(0, values - 1, "value");
    const int64_t attributes = reader.within(0, 64, "number of attributes");
    for (int64_t i = 0; i < attributes; ++i) step.attributes.push_back(reader.next());
    const int64_t tensors = reader.within(0, 16, "number of tensors");
    for (int64_t i = 0; i < tensors; ++i) step.tensors.push_back(read_tensor(reader, step, weights, bytes));
    return step;
}

// Largest first, each at the lowest place where nothing alive at the same time is.
void place_buffers(Plan& plan) {
    std::vector<size_t> order;
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
        if (plan.buffers[i].input < 0 && plan.buffers[i].size > 0) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return plan.buffers[a].size > plan.buffers[b].size; });
    std::vector<size_t> placed;
    for (const size_t i : order) {
        Buffer& buffer = plan.buffers[i];
        int64_t offset = 0;
        // `placed` is sorted by offset: step over everything that is in the way.
        for (const size_t j : placed) {
            const Buffer& other = plan.buffers[j];
            if (other.last < buffer.first || buffer.last < other.first) continue;
            if (other.offset >= offset + buffer.size) continue;
            offset = std::max(offset, other.offset + other.size);
        }
        buffer.offset = offset;
        plan.arena = std::max(plan.arena, offset + buffer.size);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                       [&](size_t a, size_t b) { return plan.buffers[a].offset < plan.buffers[b].offset; }),
                      i);
    }
}

void assign_buffers(Plan& plan) {
    std::vector<bool> written(plan.values.size(), false);
    for (Value& value : plan.values) value.buffer = -1;
    const auto fresh = [&](int64_t value, int64_t when) {
        Buffer buffer;
        buffer.size = (plan.values[value].shape.size() + 15) / 16 * 16;
        buffer.first = buffer.last = when;
        plan.values[value].buffer = static_cast<int64_t>(plan.buffers.size());
        plan.buffers.push_back(buffer);
    };
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
        if (written[plan.inputs[i]]) throw std::invalid_argument("the plan names an input twice");
        fresh(plan.inputs[i], -1);
        plan.buffers.back().input = static_cast<int64_t>(i);
        written[plan.inputs[i]] = true;
    }
    for (size_t i = 0; i < plan.steps.size(); ++i) {
        Step& step = plan.steps[i];
        const int64_t now = static_cast<int64_t>(i);
        for (const int64_t input : step.inputs) {
            if (!written[input]) refuse(now, "reads a value before it is computed");
            Buffer& buffer = plan.buffers[plan.values[input].buffer];
            buffer.last = std::max(buffer.last, now);
        }
        if (written[step.output]) refuse(now, "writes a value twice");
        written[step.output] = true;
        if (step.op == Op::kReshape) {
            plan.values[step.output].buffer = plan.values[step.inputs[0]].buffer;
        } else {
            fresh(step.output, now);
        }
        if (step.op == Op::kConvolution && !step.conv.phases.empty()) {
            Buffer copy;
            copy.size = (plan.values[step.inputs[0]].shape.channels * step.conv.channel_size + 15) / 16 * 16;
            copy.first = copy.last = now;
            step.conv.workspace_buffer = static_cast<int64_t>(plan.buffers.size());
            plan.buffers.push_back(copy);
        }
    }
    for (const int64_t output : plan.outputs) {
        if (!written[output]) throw std::invalid_argument("the plan never computes one of its outputs");
        plan.buffers[plan.values[output].buffer].last = static_cast<int64_t>(plan.steps.size());
    }
}

// Whether each position of the output is written after the residual's was read, and nothing else of it is read later.
bool adds_in_place(const Plan& plan, const Step& step, int64_t now) {
    if (step.op != Op::kConvolution || step.inputs.size() != 2 || step.conv.combine == Combine::kDepthwise) return false;
    const int64_t residual = plan.values[step.inputs[1]].buffer, output = plan.values[step.output].buffer;
    const Buffer& from = plan.buffers[residual];
    return residual != output && residual != plan.values[step.inputs[0]].buffer && from.input < 0 && from.last == now &&
           plan.buffers[output].first == now && from.size == plan.buffers[output].size;
}

// A sum with a residual nobody reads again goes where the residual is: one plane less to fetch from far away.
void share_buffers(Plan& plan) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
        const Step& step = plan.steps[i];
        if (!adds_in_place(plan, step, static_cast<int64_t>(i))) continue;
        const int64_t residual = plan.values[step.inputs[1]].buffer, output = plan.values[step.output].buffer;
        plan.buffers[residual].last = plan.buffers[output].last;
        plan.buffers[output].size = 0;
        for (Value& value : plan.values) {
            if (value.buffer == output) value.buffer = residual;
        }
    }
}

}  // namespace

void refuse(int64_t position, const char* what) {
    throw std::invalid_argument("step " + std::to_string(position) + " of the plan " + what);
}

float attribute_float(const Step& step, size_t index) {
    double value;
    std::memcpy(&value, &step.attributes[index], sizeof(value));
    return static_cast<float>(value);
}

Plan decode_plan(const int64_t* words, int64_t count, const uint8_t* weights, int64_t bytes) {
    Reader reader(words, count);
    if (reader.next() != kMagic) throw std::invalid_argument("this is not a plan");
    if (reader.next() != kFormat) throw std::invalid_argument("the plan is of another format version");
    Plan plan;
    const int64_t values = reader.within(1, kMostItems, "number of values");
    for (int64_t i = 0; i < values; ++i) {
        Value value{};
        int64_t* const sizes[] = {&value.shape.channels, &value.shape.height, &value.shape.width};
        int64_t product = 1;
        for (int64_t* size : sizes) {
            *size = reader.within(1, kMostFloats, "value size");
            if (*size > kMostFloats / product) throw std::invalid_argument("the plan has an impossible value size");
            product *= *size;
        }
        plan.values.push_back(value);
    }
    for (std::vector<int64_t>* ends : {&plan.inputs, &plan.outputs}) {
        const int64_t number = reader.within(1, values, "number of inputs or outputs");
        for (int64_t i = 0; i < number; ++i) ends->push_back(reader.within(0, values - 1, "value"));
    }
    const int64_t steps = reader.within(0, kMostItems, "number of steps");
    for (int64_t i = 0; i < steps; ++i) plan.steps.push_back(read_step(reader, values, weights, bytes));
    if (!reader.done()) throw std::invalid_argument("the plan has something after its end");
    for (int64_t i = 0; i < steps; ++i) {
        Step& step = plan.steps[i];
        if (step.op == Op::kConvolution) {
            check_convolution(step, i, plan);
            const Convolution& conv = step.conv;
            plan.scratch = std::max(plan.scratch, conv.scratch_lines + conv.scratch_partial + conv.scratch_plane);
        } else {
            check_simple(step, i, plan);
        }
    }
    assign_buffers(plan);
    share_buffers(plan);
    place_buffers(plan);
    return plan;
}

}  // namespace penni
