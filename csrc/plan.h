// A plan: values, steps and their tensors, decoded from flat numbers and checked so that running it stays in bounds.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace penni {

// The order is the file format: append only.
enum class Op : int64_t {
    kConvolution = 0,
    kPool,
    kAdaptivePool,
    kBinary,
    kConcat,
    kTakePlane,  // positions of a plane by a list, the same for every channel: slices, padding, nearest resizing
    kGather,     // channels by a list
    kTake,       // elements by a list
    kReshape,
    kActivation,
    kAffine,
    kLayerNorm,
    kGroupNorm,
    kSoftmax,
    kBilinear,
    kMean,
    kTransposedConvolution,
    kOps
};

enum class Combine : int64_t { kSparse = 0, kDense, kOutputs, kDepthwise, kShared, kMixFirst, kSliced, kKinds };

struct Shape {
    int64_t channels, height, width;
    int64_t plane() const { return height * width; }
    int64_t size() const { return channels * height * width; }
};

struct Value {
    Shape shape;
    int64_t buffer;  // values that share storage (reshape) share a buffer
};

struct Block {
    uint32_t line_begin, line_end, row_begin, row_end;
    bool first, last;    // of the blocks that add to these rows
    int64_t row_start;   // where this block's entries of `row_start` begin
    int64_t weight;      // where this block's dense weights begin
    int64_t run_begin = 0, run_end = 0;  // of `Convolution::runs`
};

// What a convolution needs whose channels are mixed first. Planes have the input's rows, each as wide as the wider of input
// and output, and are worked on in bands of output rows. Sizes in floats.
struct Mixing {
    int64_t pitch;             // of a row of a plane
    int64_t band;              // output rows at a time
    int64_t piece;             // input rows that are mixed at a time
    int64_t lead;              // zeros before a plane, and after the last: rows of padding
    int64_t plane_stride, line_stride, column_stride, mask_stride;
    std::vector<uint32_t> first, plane, kernel;  // of every output row: its planes, and the basis kernel of each
    std::vector<uint8_t> repeats;  // whether a row has the same basis kernels as the one before
    std::vector<int32_t> masks;
};

struct Convolution {
    int64_t kernel_h, kernel_w, stride_h, stride_w, top, left, bottom, right, dilation_h, dilation_w;
    Combine combine;
    bool basis_lines;  // lines are basis maps, not copies
    int64_t bases, tile;
    int64_t taps, rows, line_count, most_lines, multiplier;
    const float* bias;
    const float* basis;
    const uint32_t* lines;
    std::vector<Block> blocks;
    // What the lines are made from, for reading with masks: of basis lines the runs, of others each.
    std::vector<LineRun> runs;
    std::vector<LineSource> sources;
    // Or what `SharedRows` calls `group`, or `SlicedRows` `slice`.
    const uint32_t* row_start;
    const uint16_t* index;
    const float* weight;
    double macs;  // of one image
    float low, high;
    bool separate_activation;
    int64_t scratch_lines, scratch_partial, scratch_plane;  // floats
    // Where the output has the input's size: how far each tap reads from the output position, and which of every
    // sixteen positions then lie inside the image, (taps, vectors). Empty otherwise.
    std::vector<int32_t> tap_offset;
    std::vector<uint16_t> masks;
    // With a stride of two the taps read from a copy of the input that is taken apart into its even and odd rows and
    // columns, each a plane of the output's size. Which of these four the taps need, in the order they are kept.
    std::vector<int> phases;
    int64_t channel_size;      // floats from one channel to the next, of the copy if there is one
    int64_t workspace_buffer;  // of the copy
    Mixing mix;
};

struct Tensor {
    const void* data;
    int64_t count;
};

struct Step {
    Op op;
    std::vector<int64_t> inputs;
    int64_t output;
    std::vector<int64_t> attributes;
    std::vector<Tensor> tensors;
    int32_t activation = kNone;
    float slope = 0.0f;
    Convolution conv{};
};

struct Buffer {
    int64_t size = 0;        // floats per image, rounded up to a cache line
    int64_t offset = -1;     // in the arena, floats per image; -1 for an input
    int64_t first = 0, last = 0;
    int64_t input = -1;      // which input of the network it is
};

struct Plan {
    std::vector<Value> values;
    std::vector<Step> steps;
    std::vector<int64_t> inputs, outputs;
    std::vector<Buffer> buffers;
    int64_t arena = 0;    // floats per image
    int64_t scratch = 0;  // floats per thread
};

// Throws std::invalid_argument with one sentence if anything does not fit.
Plan decode_plan(const int64_t* words, int64_t count, const uint8_t* weights, int64_t bytes);

// Used by decode_plan: the checks of one convolution, and of every other step.
void check_convolution(Step& step, int64_t position, const Plan& plan);
void check_simple(Step& step, int64_t position, const Plan& plan);
[[noreturn]] void refuse(int64_t position, const char* what);
float attribute_float(const Step& step, size_t index);

}  // namespace penni
