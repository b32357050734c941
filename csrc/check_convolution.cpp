// The checks of a convolution step: geometry, blocks, entries, and how much scratch it needs.
#include <algorithm>
#include <limits>

#include "plan.h"

namespace penni {
namespace {

constexpr size_t kAttributes = 16;
constexpr size_t kTensors = 7;
constexpr int64_t kMostTile = 512;
constexpr int64_t kMostScratch = int64_t{1} << 28;
// All channels of the rows that are mixed at a time should stay in a first-level cache, planes and coefficients beside them.
constexpr int64_t kPieceFloats = 12288;

void read_geometry(Step& step, int64_t at, const Shape& in, const Shape& out) {
    Convolution& c = step.conv;
    int64_t* const fields[] = {&c.kernel_h, &c.kernel_w, &c.stride_h,   &c.stride_w,  &c.top,
                               &c.left,     &c.bottom,   &c.right,      &c.dilation_h, &c.dilation_w};
    for (size_t i = 0; i < 10; ++i) {
        const bool padding = i >= 4 && i < 8;
        const int64_t value = step.attributes[i];
        if (value < (padding ? 0 : 1) || value > 4096) refuse(at, "has an impossible kernel, stride or padding");
        *fields[i] = value;
    }
    const int64_t reach_h = (c.kernel_h - 1) * c.dilation_h + 1, reach_w = (c.kernel_w - 1) * c.dilation_w + 1;
    const int64_t space_h = in.height + c.top + c.bottom - reach_h, space_w = in.width + c.left + c.right - reach_w;
    if (space_h < 0 || space_w < 0 || out.height != space_h / c.stride_h + 1 || out.width != space_w / c.stride_w + 1) {
        refuse(at, "has an output that does not fit its input");
    }
    c.taps = c.kernel_h * c.kernel_w;
    if (c.taps > 65536) refuse(at, "has an impossible kernel, stride or padding");
}

void read_blocks(Step& step, int64_t at) {
    Convolution& c = step.conv;
    const Tensor& tensor = step.tensors[3];
    if (tensor.count % 4 || tensor.count == 0) refuse(at, "has a broken list of blocks");
    const uint32_t* words = static_cast<const uint32_t*>(tensor.data);
    int64_t starts = 0, weights = 0;
    const bool padded = c.combine == Combine::kOutputs;
    for (int64_t i = 0; i < tensor.count; i += 4) {
        Block block{words[i], words[i + 1], words[i + 2], words[i + 3], true, true, starts, weights};
        if (block.line_begin > block.line_end || block.line_end > c.line_count || block.row_begin >= block.row_end ||
            block.row_end > c.rows) {
            refuse(at, "has a block outside its lines or rows");
        }
        const uint32_t expected = c.blocks.empty() ? 0 : c.blocks.back().row_end;
        if (!c.blocks.empty() && block.row_begin == c.blocks.back().row_begin && block.row_end == expected) {
            block.first = false;
            c.blocks.back().last = false;
        } else if (block.row_begin != expected) {
            refuse(at, "has blocks that leave out or repeat rows");
        }
        const int64_t rows = block.row_end - block.row_begin, lines = block.line_end - block.line_begin;
        starts += c.combine == Combine::kShared   ? (rows + kSharedRows - 1) / kSharedRows * kSharedWords
                  : c.combine == Combine::kSliced ? (rows + kSliceRows - 1) / kSliceRows * kSliceWords
                                                  : rows + 1;
        weights += (padded ? (rows + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs : rows) * lines;
        c.most_lines = std::max(c.most_lines, lines);
        c.blocks.push_back(block);
    }
    if (c.blocks.back().row_end != c.rows) refuse(at, "has blocks that leave out or repeat rows");
    if (padded && c.blocks.size() != 1) refuse(at, "has more blocks than its kernel takes");
    // Rows are shared out among threads by whole groups, counted from the first row.
    const bool grouped = c.combine == Combine::kShared || c.combine == Combine::kSliced;
    if (grouped && c.blocks.front().row_end != c.rows) refuse(at, "has groups of rows in parts");
    if (grouped || c.combine == Combine::kSparse) {
        if (step.tensors[4].count != starts) refuse(at, "has a broken list of row starts");
    } else if (step.tensors[6].count != weights) {
        refuse(at, "has weights of another size than its rows");
    }
}

void check_entries(Step& step, int64_t at) {
    Convolution& c = step.conv;
    const int64_t entries = step.tensors[6].count;
    if (step.tensors[5].count != entries || entries > std::numeric_limits<uint32_t>::max()) {
        refuse(at, "has as many indices as it should not");
    }
    for (const Block& block : c.blocks) {
        const uint32_t lines = block.line_end - block.line_begin;
        const uint32_t* start = c.row_start + block.row_start;
        const int64_t rows = block.row_end - block.row_begin;
        for (int64_t row = 0; row < rows; ++row) {
            if (start[row] > start[row + 1]) refuse(at, "has row starts that go backwards");
        }
        if (start[rows] > entries) refuse(at, "has row starts beyond its entries");
        uint16_t most = 0;
        for (uint32_t i = start[0]; i < start[rows]; ++i) most = std::max(most, c.index[i]);
        if (start[rows] > start[0] && most >= lines) refuse(at, "has an index outside its lines");
    }
}

void check_shared(Step& step, int64_t at) {
    Convolution& c = step.conv;
    const int64_t indices = step.tensors[5].count, coefficients = step.tensors[6].count;
    for (const Block& block : c.blocks) {
        const uint32_t lines = block.line_end - block.line_begin;
        const uint32_t* group = c.row_start + block.row_start;
        for (int64_t row = block.row_begin; row < block.row_end; row += kSharedRows, group += kSharedWords) {
            int64_t reads = 0, weights = 0;
            for (int64_t rows = 1; rows <= kSharedSets; ++rows) {
                reads += group[1 + rows];
                weights += group[1 + rows] * static_cast<int64_t>(__builtin_popcountll(static_cast<uint64_t>(rows)));
            }
            if (group[0] + reads > indices || group[1] + weights > coefficients) {
                refuse(at, "has a group of rows beyond its entries");
            }
            for (int64_t i = group[0]; i < group[0] + reads; ++i) {
                if (c.index[i] >= lines) refuse(at, "has an index outside its lines");
            }
        }
    }
}

// Every row stands in one slice of every block, within its window.
void check_sliced(Step& step, int64_t at) {
    Convolution& c = step.conv;
    const int64_t entries = step.tensors[6].count;
    if (step.tensors[5].count != entries || entries > std::numeric_limits<uint32_t>::max()) {
        refuse(at, "has as many indices as it should not");
    }
    const int64_t slices = (c.rows + kSliceRows - 1) / kSliceRows;
    for (const Block& block : c.blocks) {
        const uint32_t lines = block.line_end - block.line_begin;
        const uint32_t* slice = c.row_start + block.row_start;
        std::vector<bool> met(static_cast<size_t>(c.rows), false);
        int64_t rows = 0;
        for (int64_t s = 0; s < slices; ++s, slice += kSliceWords) {
            const int64_t used = static_cast<int64_t>(slice[1]) * kSliceRows;
            if (slice[0] > entries - std::min(entries, used) || used > entries) {
                refuse(at, "has a group of rows beyond its entries");
            }
            for (int64_t i = slice[0]; i < slice[0] + used; ++i) {
                if (c.index[i] >= lines) refuse(at, "has an index outside its lines");
            }
            const int64_t window = s * kSliceRows / kSliceWindow;
            for (int64_t r = 0; r < kSliceRows; ++r) {
                const uint32_t row = slice[2 + r];
                if (row == kNoRow && r > 0 && s == slices - 1) continue;
                if (row >= c.rows || row / kSliceWindow != window || met[row]) {
                    refuse(at, "has blocks that leave out or repeat rows");
                }
                met[row] = true;
                ++rows;
            }
        }
        if (rows != c.rows) refuse(at, "has blocks that leave out or repeat rows");
    }
}

void check_lines(Step& step, int64_t at, const Shape& in) {
    const Convolution& c = step.conv;
    const int64_t each = c.basis_lines ? c.bases : c.taps;
    if (in.channels > std::numeric_limits<uint32_t>::max() / each) refuse(at, "has too many lines");
    const int64_t limit = in.channels * each;
    for (int64_t i = 0; i < c.line_count; ++i) {
        if (c.lines[i] >= limit) refuse(at, "has a line that reads outside its input");
    }
}

// Lines in runs of one channel. Nine are better made as five and four than as six and three.
void find_runs(Convolution& c) {
    const auto bases = static_cast<uint32_t>(c.bases), taps = static_cast<uint32_t>(c.taps);
    for (Block& block : c.blocks) {
        block.run_begin = static_cast<int64_t>(c.runs.size());
        for (uint32_t line = block.line_begin; line < block.line_end;) {
            LineRun run{c.lines[line] / bases, line - block.line_begin, 1, {}, false};
            while (line + run.count < block.line_end && run.count < 2 * kRunLines &&
                   c.lines[line + run.count] / bases == run.channel) {
                ++run.count;
            }
            if (run.count > kRunLines) run.count = (run.count + 1) / 2;
            run.whole = run.count == bases;
            for (uint32_t i = 0; i < run.count; ++i) {
                const uint32_t kernel = c.lines[line + i] % bases;
                run.kernels[i] = kernel * taps;
                run.whole &= kernel == i;
            }
            c.runs.push_back(run);
            line += run.count;
        }
        block.run_end = static_cast<int64_t>(c.runs.size());
        // Runs of one length after each other: each length is a loop of its own, which the processor then foresees.
        std::stable_sort(c.runs.begin() + block.run_begin, c.runs.end(),
                         [](const LineRun& a, const LineRun& b) { return a.count > b.count; });
    }
}

void find_sources(Convolution& c) {
    const auto taps = static_cast<uint32_t>(c.taps);
    for (int64_t i = 0; i < c.line_count; ++i) c.sources.push_back({c.lines[i] / taps, c.lines[i] % taps});
}

int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }

// Blocks of rows, each with its planes; `lines` says of every plane which row and basis kernel it is for.
void read_planes(Step& step, int64_t at) {
    Convolution& c = step.conv;
    const Tensor& tensor = step.tensors[3];
    if (tensor.count % 4 || tensor.count == 0) refuse(at, "has a broken list of blocks");
    const uint32_t* words = static_cast<const uint32_t*>(tensor.data);
    c.mix.first.assign(static_cast<size_t>(c.rows) + 1, 0);
    uint32_t lines = 0, rows = 0;
    for (int64_t i = 0; i < tensor.count; i += 4) {
        const Block block{words[i], words[i + 1], words[i + 2], words[i + 3], true, true, 0, 0};
        if (block.line_begin != lines || block.row_begin != rows || block.line_end < lines || block.row_end <= rows ||
            block.line_end > c.line_count || block.row_end > c.rows) {
            refuse(at, "has blocks that leave out or repeat rows");
        }
        lines = block.line_end;
        rows = block.row_end;
        c.most_lines = std::max<int64_t>(c.most_lines, lines - block.line_begin);
        for (uint32_t line = block.line_begin; line < lines; ++line) {
            const int64_t row = c.lines[line] / c.bases;
            if (row < block.row_begin || row >= rows) refuse(at, "has a plane for a row outside its block");
            ++c.mix.first[static_cast<size_t>(row) + 1];
        }
        c.blocks.push_back(block);
    }
    if (rows != c.rows || lines != c.line_count) refuse(at, "has blocks that leave out or repeat rows");
    for (size_t row = 0; row < static_cast<size_t>(c.rows); ++row) c.mix.first[row + 1] += c.mix.first[row];
    std::vector<uint32_t> next = c.mix.first;
    c.mix.plane.resize(lines);
    c.mix.kernel.resize(lines);
    for (const Block& block : c.blocks) {
        std::vector<uint32_t> order;
        for (uint32_t line = block.line_begin; line < block.line_end; ++line) order.push_back(line);
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return c.lines[a] < c.lines[b]; });
        for (const uint32_t line : order) {
            const uint32_t place = next[static_cast<size_t>(c.lines[line] / c.bases)]++;
            c.mix.plane[place] = line - block.line_begin;
            c.mix.kernel[place] = static_cast<uint32_t>(c.lines[line] % c.bases);
        }
    }
    c.mix.repeats.assign(static_cast<size_t>(c.rows), 0);
    const auto kernels = c.mix.kernel.begin();
    for (size_t row = 1; row < static_cast<size_t>(c.rows); ++row) {
        const uint32_t before = c.mix.first[row - 1], start = c.mix.first[row], end = c.mix.first[row + 1];
        c.mix.repeats[row] = std::equal(kernels + before, kernels + start, kernels + start, kernels + end);
    }
}

// The entries of a plane are input channels.
void check_mixing(const Step& step, int64_t at, const Shape& in) {
    const Convolution& c = step.conv;
    const int64_t entries = step.tensors[6].count;
    if (step.tensors[5].count != entries || entries > std::numeric_limits<uint32_t>::max()) {
        refuse(at, "has as many indices as it should not");
    }
    if (step.tensors[4].count != c.line_count + 1) refuse(at, "has a broken list of row starts");
    for (int64_t line = 0; line < c.line_count; ++line) {
        if (c.row_start[line] > c.row_start[line + 1]) refuse(at, "has row starts that go backwards");
    }
    if (c.row_start[c.line_count] > entries) refuse(at, "has row starts beyond its entries");
    for (uint32_t i = c.row_start[0]; i < c.row_start[c.line_count]; ++i) {
        if (c.index[i] >= in.channels) refuse(at, "has an index outside its input");
    }
}

// How planes lie in scratch: see run_mix_first.cpp.
void plan_mixing(Step& step, int64_t at, const Shape& in, const Shape& out) {
    Convolution& c = step.conv;
    Mixing& m = c.mix;
    const int64_t reach = (c.kernel_h - 1) * c.dilation_h;
    m.pitch = std::max(in.width, out.width);
    m.band = std::min(out.height, std::max<int64_t>(1, c.tile / m.pitch));
    m.lead = round_up(std::max(c.top, c.bottom) * m.pitch);
    const int64_t height = std::min(in.height, m.band + reach), image = round_up(height * m.pitch);
    m.plane_stride = m.lead + image;
    const int64_t most = std::max<int64_t>(1, std::clamp<int64_t>(kPieceFloats / in.channels, 32, 128) / m.pitch);
    const int64_t pieces = (height + most - 1) / most;
    m.piece = (height + pieces - 1) / pieces;
    m.line_stride = round_up(m.piece * m.pitch);
    const int64_t lines = pieces * in.channels;
    m.column_stride = round_up(m.band * m.pitch);
    m.mask_stride = m.column_stride + 16;
    const int64_t columns = kMixedAhead * c.kernel_w * m.column_stride;
    if (m.plane_stride > kMostScratch || c.most_lines > kMostScratch / m.plane_stride || columns > kMostScratch ||
        lines > kMostScratch / m.line_stride || c.kernel_w * m.mask_stride > (1 << 22)) {
        refuse(at, "needs too much scratch");
    }
    // Vectors reach beyond the end of what they read or write, and columns begin before theirs.
    c.scratch_lines = lines * m.line_stride + 64;
    c.scratch_plane = c.most_lines * m.plane_stride + m.lead + 64;
    c.scratch_partial = round_up(columns + c.left + c.kernel_w * c.dilation_w + 64);
    m.masks.assign(static_cast<size_t>(c.kernel_w * m.mask_stride), 0);
    for (int64_t tap = 0; tap < c.kernel_w; ++tap) {
        for (int64_t position = 0; position < m.band * m.pitch; ++position) {
            const int64_t column = position % m.pitch + tap * c.dilation_w - c.left;
            if (column >= 0 && column < in.width) m.masks[static_cast<size_t>(tap * m.mask_stride + position)] = -1;
        }
    }
    const double bands = static_cast<double>((out.height + m.band - 1) / m.band);
    c.macs = static_cast<double>(step.tensors[6].count) * bands * static_cast<double>(image) +
             static_cast<double>(c.line_count * c.taps) * static_cast<double>(out.height * m.pitch);
}

int64_t floor_half(int64_t value) { return value >= 0 ? value / 2 : -((1 - value) / 2); }

void make_masks(Convolution& c, const Shape& in, const Shape& out) {
    const int64_t step = c.stride_h;
    const bool fits = (in.height + step - 1) / step == out.height && (in.width + step - 1) / step == out.width;
    const int64_t vectors = (out.plane() + 15) / 16;
    const int64_t reach = (c.kernel_h * c.dilation_h + c.top) * in.width + c.kernel_w * c.dilation_w + c.left;
    if (!fits || step > 2 || c.stride_w != step || c.taps * vectors > (1 << 22)) return;
    if (reach > (1 << 28) || out.plane() > (1 << 28)) return;
    c.masks.assign(static_cast<size_t>(c.taps * vectors), 0);
    for (int64_t tap = 0; tap < c.taps; ++tap) {
        const int64_t down = tap / c.kernel_w * c.dilation_h - c.top, right = tap % c.kernel_w * c.dilation_w - c.left;
        if (step == 1) {
            c.tap_offset.push_back(static_cast<int32_t>(down * in.width + right));
        } else {
            const int phase = static_cast<int>((down & 1) * 2 + (right & 1));
            auto place = std::find(c.phases.begin(), c.phases.end(), phase);
            if (place == c.phases.end()) place = c.phases.insert(place, phase);
            const int64_t plane = (place - c.phases.begin()) * out.plane();
            c.tap_offset.push_back(static_cast<int32_t>(plane + floor_half(down) * out.width + floor_half(right)));
        }
        for (int64_t row = 0; row < out.height; ++row) {
            const int64_t from_row = row * step + down;
            if (from_row < 0 || from_row >= in.height) continue;
            for (int64_t column = 0; column < out.width; ++column) {
                const int64_t from_column = column * step + right;
                if (from_column < 0 || from_column >= in.width) continue;
                const int64_t at = row * out.width + column;
                c.masks[static_cast<size_t>(tap * vectors + at / 16)] |= static_cast<uint16_t>(1u << (at % 16));
            }
        }
    }
    c.channel_size = step == 1 ? in.plane() : static_cast<int64_t>(c.phases.size()) * out.plane();
}

}  // namespace

void check_convolution(Step& step, int64_t at, const Plan& plan) {
    if (step.attributes.size() != kAttributes || step.tensors.size() != kTensors) {
        refuse(at, "has the wrong number of attributes or tensors");
    }
    if (step.inputs.size() > 2) refuse(at, "has too many inputs");
    const Shape in = plan.values[step.inputs[0]].shape, out = plan.values[step.output].shape;
    if (step.inputs.size() == 2) {
        const Shape& residual = plan.values[step.inputs[1]].shape;
        if (residual.channels != out.channels || residual.height != out.height || residual.width != out.width) {
            refuse(at, "adds a residual of another shape");
        }
    }
    read_geometry(step, at, in, out);
    Convolution& c = step.conv;
    const auto& a = step.attributes;
    if (a[10] < 0 || a[10] >= kActivations) refuse(at, "has an unknown activation");
    step.activation = static_cast<int32_t>(a[10]);
    step.slope = attribute_float(step, 11);
    if (a[12] < 0 || a[12] >= static_cast<int64_t>(Combine::kKinds)) refuse(at, "has an unknown kernel");
    c.combine = static_cast<Combine>(a[12]);
    c.basis_lines = a[13] != 0;
    c.bases = a[14];
    c.tile = a[15];
    if (c.tile < 16 || c.tile > kMostTile || c.tile % 16) refuse(at, "has an impossible tile");
    c.rows = out.channels;
    c.bias = static_cast<const float*>(step.tensors[0].data);
    c.basis = static_cast<const float*>(step.tensors[1].data);
    c.lines = static_cast<const uint32_t*>(step.tensors[2].data);
    c.line_count = step.tensors[2].count;
    c.row_start = static_cast<const uint32_t*>(step.tensors[4].data);
    c.index = static_cast<const uint16_t*>(step.tensors[5].data);
    c.weight = static_cast<const float*>(step.tensors[6].data);
    if (step.tensors[0].count != c.rows) refuse(at, "has a bias of another size than its output");
    constexpr float infinity = std::numeric_limits<float>::infinity();
    c.low = step.activation == kRelu || step.activation == kRelu6 ? 0.0f : -infinity;
    c.high = step.activation == kRelu6 ? 6.0f : infinity;
    c.separate_activation = step.activation > kRelu6;
    if ((c.basis_lines || c.combine == Combine::kMixFirst) &&
        (c.bases < 1 || c.bases > 65536 || step.tensors[1].count != c.bases * c.taps)) {
        refuse(at, "has basis kernels of another size than its kernel");
    }
    if (c.combine == Combine::kMixFirst) {
        if (c.basis_lines || c.stride_h != 1 || c.stride_w != 1) refuse(at, "has a kernel that does not go with its lines");
        read_planes(step, at);
        check_mixing(step, at, in);
        plan_mixing(step, at, in, out);
        return;
    }
    make_masks(c, in, out);
    // Column-shifted copies of the rows a tile spans: see spread in run_convolution.cpp.
    const int64_t rows_spanned = std::min(out.height, (c.tile + out.width - 2) / out.width + 1);
    const int64_t phases = std::min(c.stride_h, c.kernel_h);
    const int64_t halo = (c.kernel_h - 1) * c.dilation_h / c.stride_h;
    if (c.combine == Combine::kDepthwise) {
        if (out.channels % in.channels) refuse(at, "has outputs that do not divide among its inputs");
        c.multiplier = out.channels / in.channels;
        if (step.tensors[6].count != c.rows * c.taps) refuse(at, "has weights of another size than its rows");
        c.bases = c.multiplier;
    } else {
        if (c.combine == Combine::kOutputs && c.basis_lines) refuse(at, "has a kernel that does not go with its lines");
        check_lines(step, at, in);
        read_blocks(step, at);
        if (!c.masks.empty()) c.basis_lines ? find_runs(c) : find_sources(c);
        if (c.combine == Combine::kSparse) check_entries(step, at);
        if (c.combine == Combine::kShared) check_shared(step, at);
        if (c.combine == Combine::kSliced) check_sliced(step, at);
        if (c.most_lines * c.tile > kMostScratch || c.rows > kMostScratch / c.tile) refuse(at, "needs too much scratch");
        c.scratch_lines = c.most_lines * c.tile + 64;
        c.scratch_partial = c.rows * c.tile + 64;
    }
    c.macs = static_cast<double>(step.tensors[6].count) * static_cast<double>(out.plane());
    if (c.basis_lines) c.macs += static_cast<double>(c.line_count * c.taps) * static_cast<double>(out.plane());
    if (c.basis_lines || c.combine == Combine::kDepthwise) {
        const double copies = static_cast<double>(c.kernel_w) * static_cast<double>(phases);
        const double plane = copies * static_cast<double>(rows_spanned + halo) * static_cast<double>(out.width);
        if (plane > kMostScratch || c.taps * c.tile > kMostScratch) refuse(at, "needs too much scratch");
        c.scratch_plane = (std::max(static_cast<int64_t>(plane), c.taps * c.tile) + 80) / 16 * 16;
        c.scratch_plane *= 4;
    }
}

}  // namespace penni
