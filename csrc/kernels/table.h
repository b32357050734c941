// What every kernel set offers: plain structs of arguments and one table of functions per instruction set.
//
// This header is included by units that are compiled for different instruction sets, so it defines
// no inline function: the linker might keep the copy that this machine cannot run.
#pragma once
#include <cstddef>
#include <cstdint>

namespace penni {

enum Activation : int32_t {
    kNone = 0,
    kRelu,
    kRelu6,
    kLeaky,
    kSilu,
    kHardswish,
    kHardsigmoid,
    kSigmoid,
    kGelu,
    kTanh,
    kGeluTanh,
    kElu,
    kActivations
};

// Scratch rows ("lines") of `stride` floats each; a tile uses the first `positions` of every line.
struct Lines {
    const float* data;
    int64_t stride;
    int64_t positions;
};

// Where finished rows go. Row r of the tile is written at output + r * pitch.
struct Finish {
    bool first;             // start from the bias, not from `partial`
    bool last;              // write the output, not `partial`
    const float* bias;      // one per row, never null
    float* partial;         // [rows][lines.stride]
    float* output;
    const float* residual;  // null, or laid out like `output`
    int64_t pitch;
    int64_t residual_pitch;
    float low, high;        // the output is clamped to this range: ReLU, ReLU6 or nothing
};

struct SparseRows {
    Lines lines;
    Finish finish;
    int64_t row_begin, row_end;
    const uint32_t* row_start;  // entries of row r: row_start[r] up to row_start[r + 1]
    const uint16_t* index;      // line of each entry
    const float* coefficient;
};

// Rows four at a time: a line that several of the four read is loaded once for all of them. A group's entries are
// sorted by which of its rows read them, a set of bits from 1 to 15.
struct SharedRows {
    Lines lines;
    Finish finish;
    int64_t row_begin, row_end;  // row_begin is a multiple of kSharedRows
    // kSharedWords numbers per group: where its indices begin, where its coefficients begin, and how many lines each
    // set of rows reads.
    const uint32_t* group;
    const uint16_t* index;     // line of each entry
    const float* coefficient;  // as many per entry as rows read it, in their order
};

constexpr int64_t kSharedRows = 4;
constexpr int64_t kSharedSets = (1 << kSharedRows) - 1;
constexpr int64_t kSharedWords = 2 + kSharedSets;

// Rows four at a time, each with its own lines: rows of about as many entries stand together, the shorter ones filled
// up with zeros, so that one loop serves four rows. Where its end comes is foreseen wrongly once for the four of them.
struct SlicedRows {
    Lines lines;
    Finish finish;
    int64_t begin, end;  // slices
    // kSliceWords numbers per slice: where its entries begin, how many entries each row has, and the rows.
    const uint32_t* slice;
    const uint16_t* index;     // line of each entry: first of all four rows, then second of all four, …
    const float* coefficient;
};

constexpr int64_t kSliceRows = 4;
constexpr int64_t kSliceWords = 2 + kSliceRows;
constexpr uint32_t kNoRow = 0xffffffff;  // in the last slice
// Rows are sorted within so many neighbours, so that threads can share them out.
constexpr int64_t kSliceWindow = 64;

struct DenseRows {
    Lines lines;
    Finish finish;
    int64_t row_begin, row_end;  // row_begin is a multiple of kPanelRows, counted from `rows_from`
    int64_t rows_from, rows_to;  // the rows of the block
    int64_t count;               // lines summed over
    const float* weight;         // panels of kPanelRows rows: [panel][line][row in panel], the last panel narrower
};

struct DenseOutputs {
    Lines lines;                 // few positions, at most kFewPositions
    Finish finish;               // first and last at once
    int64_t row_begin, row_end;  // row_begin is a multiple of kPanelOutputs
    int64_t rows;                // all of them
    int64_t count;
    const float* weight;  // panels of kPanelOutputs rows: [panel][line][row in panel], the last one padded with zeros
};

constexpr int64_t kPanelRows = 24;
constexpr int64_t kPanelOutputs = 64;
constexpr int64_t kFewPositions = 8;

// Convolve one plane, given as column-shifted copies, with several small kernels.
struct BasisLines {
    const float* plane;
    const int32_t* tap_offset;  // in floats, per tap
    int64_t taps;
    const float* const* kernels;  // `count` pointers to `taps` weights
    int64_t count;
    const float* start;  // null for zero, or one start value per kernel
    float* lines;        // `count` lines
    int64_t stride;
    int64_t positions;
    float low, high;
    bool exact;  // write no more than `positions` floats of a line
    // Not null: `plane` is the input itself at the tile's first position, and bit l of masks[tap * mask_stride + v]
    // says whether lane l of the v-th sixteen positions lies inside the image for that tap. Only sets with
    // `reads_masked` take this, and then one kernel.
    const uint16_t* masks;
    int64_t mask_stride;
    int64_t begin, width;  // of such a tile its first position in the plane, and what `MaskedBasisLines` calls `width`
};

// Neighbouring lines of one channel, as many as are made at once. Found when a plan is read, not anew for each tile.
constexpr uint32_t kRunLines = 6;
struct LineRun {
    uint32_t channel;
    uint32_t line, count;         // counted from the first line of the block
    uint32_t kernels[kRunLines];  // where each basis kernel begins
    bool whole;                   // every basis kernel there is, in order
};

// Basis lines of many channels, read from the input with masks as above.
struct MaskedBasisLines {
    const float* image;     // all channels, at the tile's first position
    int64_t channel_size;
    int64_t start;          // that position in the plane
    int64_t width;          // of the plane, if the taps are three rows of three neighbours, the middle one straight above;
                            // else 0
    const LineRun* runs;
    int64_t count, bases, taps;  // `count` runs
    const float* basis;
    const int32_t* tap_offset;
    const uint16_t* masks;
    int64_t mask_stride;
    float* out;
    int64_t stride, positions;
};

// Planes that are sums of lines, to be convolved. No more than the positions of the lines is written of a plane.
struct MixedPlanes {
    Lines lines;
    int64_t count;
    const uint32_t* row_start;  // entries of plane p: row_start[p] up to row_start[p + 1]
    const uint16_t* index;      // line of each entry
    const float* coefficient;
    float* planes;
    int64_t plane_stride;
};

// Rows of the output from planes that are input channels mixed: planes of the input's rows, `positions` of which are
// wanted, each to be convolved with a basis kernel.
struct MixedRows {
    const float* planes;  // where the first tap reads for the first position
    int64_t plane_stride;
    const uint32_t* first;   // planes of row r: entries first[r] up to first[r + 1]
    const uint32_t* plane;   // which plane each entry is
    const uint32_t* kernel;  // and which basis kernel it goes with
    const uint8_t* repeats;  // of every row: whether it goes with the same basis kernels as the row before
    const float* basis;
    int64_t kernel_h, kernel_w;
    int64_t down, right;  // in floats, from one tap to the one below and to the one beside it
    int64_t left;         // columns of padding
    int64_t row_begin, row_end;
    int64_t positions;
    float* columns;         // scratch: a line for every column of the kernel, for kMixedAhead rows
    int64_t column_stride;  // a multiple of the widest vector
    const int32_t* masks;   // of every column and position: all bits if the tap's pixel is inside the image, or none
    int64_t mask_stride;
    const float* bias;
    float* output;
    const float* residual;  // null, or laid out like `output`
    int64_t pitch;          // from one output row to the next
    int64_t runs, run;      // the output is so many runs of so many positions
    int64_t run_pitch;      // of a run among the positions
    float low, high;
};

constexpr int64_t kMixedAhead = 8;

struct LineSource {
    uint32_t channel, tap;
};

// Lines that are the input seen through taps, read with masks as above.
struct TapLines {
    const float* image;     // all channels, at the tile's first position
    int64_t channel_size;   // floats from one channel to the next
    const LineSource* lines;
    int64_t count;
    const int32_t* tap_offset;
    const uint16_t* masks;
    int64_t mask_stride;
    float* out;
    int64_t stride, positions;
};

// One row of an input plane, shifted and strided, written to `out`.
struct CopyRow {
    const float* row;  // null for a row of padding
    int64_t width;     // of the row
    int64_t first;     // column of the row that out[0] is; may be negative
    int64_t step;
    float* out;
    int64_t count;
};

// The even or odd rows and columns of a plane, each a plane of its own: phase 2 * (odd rows) + (odd columns). What lies
// beyond the plane is zero.
struct Apart {
    const float* in;
    int64_t height, width;
    const int* phases;
    int64_t count;
    int64_t out_height, out_width;
    float* out;
};

struct Pool {
    const float* input;
    float* output;
    int64_t height, width, out_height, out_width;
    int64_t kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
    int64_t bottom, right;
    int64_t divisor;  // 0: the cells counted
    bool maximum, count_padding;
    float* row;  // scratch for kPoolRows rows of the padded image
    int64_t row_size;
};

constexpr int64_t kPoolRows = 8;

struct KernelTable {
    const char* name;
    int lanes;
    bool reads_masked;
    void (*sparse_rows)(const SparseRows&);
    void (*shared_rows)(const SharedRows&);
    void (*sliced_rows)(const SlicedRows&);
    void (*dense_rows)(const DenseRows&);
    void (*dense_outputs)(const DenseOutputs&);
    void (*basis_lines)(const BasisLines&);
    void (*masked_basis_lines)(const MaskedBasisLines&);  // null without `reads_masked`, as the next
    void (*tap_lines)(const TapLines&);
    void (*mixed_planes)(const MixedPlanes&);
    void (*mixed_rows)(const MixedRows&);
    void (*copy_rows)(const CopyRow*, int64_t);
    void (*take_apart)(const Apart&);
    void (*activate)(float*, int64_t, int32_t, float);
    void (*pool)(const Pool&);
    void (*pool_pairs)(const float* in, int64_t pairs, int64_t width, float* out, bool maximum);
    void (*add)(const float*, const float*, float*, int64_t);
    void (*multiply)(const float*, const float*, float*, int64_t);
    void (*scale_shift)(const float*, float, float, float*, int64_t);  // out = in * scale + shift
    float (*sum)(const float*, int64_t);
    void (*softmax)(const float*, float*, int64_t count, int64_t stride, int64_t columns);
    void (*layer_norm)(const float*, float*, int64_t channels, int64_t positions, const float*, const float*, float);
};

const KernelTable* portable_kernels();
const KernelTable* avx2_kernels();    // null where the compiler does not target it
const KernelTable* avx512_kernels();
const KernelTable* neon_kernels();

}  // namespace penni
