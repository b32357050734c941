// Running a convolution: for every tile of output positions, make lines from the input, then sum them into rows.
//
// A tile is a run of neighbouring output positions of one image, or of the whole planes of several
// images where planes are small. A line holds one number per position: an input pixel shifted by a
// kernel tap, or an input channel convolved with one basis kernel. Lines are made in blocks that
// stay in the first-level cache, and a row's partial sums wait between blocks.
#include <algorithm>
#include <cstring>

#include "run.h"

namespace penni {
namespace {

constexpr int64_t kChannelsAhead = 4;
constexpr int64_t kMostBases = 64;

struct Tile {
    int64_t image, images;    // which images it spans
    int64_t start, positions; // start: position within the plane; positions: of the whole tile
};

class Runner {
  public:
    Runner(const Running& running, const Step& step)
        : running_(running), step_(step), conv_(step.conv), in_(running.plan.values[step.inputs[0]].shape),
          out_(running.plan.values[step.output].shape), input_(running.values[step.inputs[0]]),
          residual_(step.inputs.size() == 2 ? running.values[step.inputs[1]] : nullptr),
          output_(running.values[step.output]) {
        pointwise_ = conv_.taps == 1 && conv_.stride_h == 1 && conv_.stride_w == 1 && in_.plane() == out_.plane() &&
                     conv_.top == 0 && conv_.left == 0;
        // A small plane needs no wide lines, and narrow ones stay together in the cache.
        tile_ = std::min(conv_.tile, (out_.plane() * running.batch + 15) / 16 * 16);
        if (conv_.combine == Combine::kOutputs) tile_ = std::min<int64_t>(kFewPositions, out_.plane() * running.batch);
        images_ = 1;
        if (conv_.combine != Combine::kDepthwise && out_.plane() * 2 <= tile_) {
            images_ = std::min(running.batch, tile_ / out_.plane());
        }
        // Equal tiles, rather than full ones and a rest.
        const int64_t count = (out_.plane() + tile_ - 1) / tile_;
        step_size_ = std::min(tile_, ((out_.plane() + count - 1) / count + 15) / 16 * 16);
        if (conv_.combine == Combine::kOutputs) step_size_ = tile_;
        tiles_ = (out_.plane() + step_size_ - 1) / step_size_;
        masked_ = running.kernels.reads_masked && images_ == 1 && !conv_.masks.empty() && step_size_ % 16 == 0;
        if (masked_ && !conv_.phases.empty()) {
            source_ = running.buffers[conv_.workspace_buffer];
        } else {
            source_ = input_;
        }
        mask_stride_ = (out_.plane() + 15) / 16;
        adjacent_ = conv_.kernel_h == 3 && conv_.kernel_w == 3 && conv_.stride_h == 1 && conv_.stride_w == 1 &&
                    conv_.dilation_w == 1 && conv_.left == 1;
        plan_taps();
    }

    void run() {
        if (source_ != input_) take_apart();
        const int64_t groups = (running_.batch + images_ - 1) / images_;
        const int64_t tasks = groups * tiles_;
        const int64_t align = conv_.combine == Combine::kDense     ? kPanelRows
                              : conv_.combine == Combine::kOutputs ? kPanelOutputs
                              : conv_.combine == Combine::kShared  ? kSharedRows
                              : conv_.combine == Combine::kSliced  ? kSliceWindow
                                                                   : 1;
        const int64_t units = (conv_.rows + align - 1) / align;
        const double work = conv_.macs / 8 * static_cast<double>(running_.batch);
        const bool share = running_.pool && work > kWorthSharing;
        const int64_t parts = share ? parts_of_rows(tasks, units) : 1;
        running_.each(tasks * parts, work, [&](int64_t task, int worker) {
            const int64_t part = task % parts, tile = task / parts % tiles_, group = task / parts / tiles_;
            const int64_t image = group * images_;
            Tile t{image, std::min(images_, running_.batch - image), tile * step_size_, 0};
            t.positions = images_ > 1 ? t.images * out_.plane() : std::min(step_size_, out_.plane() - t.start);
            const int64_t from = units * part / parts * align;
            const int64_t to = std::min(conv_.rows, units * (part + 1) / parts * align);
            run_tile(t, from, to, running_.scratch[worker]);
        });
    }

  private:
    // Where the tiles do not share out evenly among the threads, into how many parts to split the rows too: that shares out
    // better, and makes the lines of a tile once for every part.
    int64_t parts_of_rows(int64_t tasks, int64_t units) const {
        const double lines = static_cast<double>(conv_.line_count) * (conv_.basis_lines ? static_cast<double>(conv_.taps) : 2);
        const double rows = conv_.macs / static_cast<double>(out_.plane()) - (conv_.basis_lines ? lines : 0);
        const int64_t threads = running_.threads();
        int64_t best = 1;
        double least = 0;
        for (int64_t parts = 1; parts <= std::min(threads, units); ++parts) {
            const auto turns = static_cast<double>((tasks * parts + threads - 1) / threads);
            const double time = turns * (lines + rows / static_cast<double>(parts));
            // A few per cent are not worth the lines.
            if (parts == 1 || time < 0.97 * least) {
                least = time;
                best = parts;
            }
        }
        return best;
    }

    // Where each tap finds its pixels in the copies that prepare_plane makes of one channel.
    void plan_taps() {
        if (masked_ || (!conv_.basis_lines && conv_.combine != Combine::kDepthwise)) return;
        offsets_.resize(static_cast<size_t>(conv_.taps));
        if (images_ > 1) {
            for (int64_t tap = 0; tap < conv_.taps; ++tap) offsets_[tap] = static_cast<int32_t>(tap * tile_);
            return;
        }
        std::vector<int64_t> most(static_cast<size_t>(conv_.stride_h), -1);
        for (int64_t i = 0; i < conv_.kernel_h; ++i) {
            const int64_t shift = i * conv_.dilation_h;
            most[shift % conv_.stride_h] = std::max(most[shift % conv_.stride_h], shift / conv_.stride_h);
        }
        rows_spanned_ = std::min(out_.height, (step_size_ + out_.width - 2) / out_.width + 1);
        int64_t at = 0;
        for (int64_t phase = 0; phase < conv_.stride_h; ++phase) {
            if (most[phase] < 0) continue;
            for (int64_t j = 0; j < conv_.kernel_w; ++j) {
                planes_.push_back({phase, j, most[phase], at});
                for (int64_t i = 0; i < conv_.kernel_h; ++i) {
                    const int64_t shift = i * conv_.dilation_h;
                    if (shift % conv_.stride_h != phase) continue;
                    offsets_[i * conv_.kernel_w + j] =
                        static_cast<int32_t>(at + shift / conv_.stride_h * out_.width);
                }
                at += (rows_spanned_ + most[phase]) * out_.width;
            }
        }
    }

    // The even and odd rows and columns of every channel, each a plane of its own.
    void take_apart() const {
        float* const copy = running_.buffers[conv_.workspace_buffer];
        const double work = static_cast<double>(in_.size() * running_.batch);
        running_.each(running_.batch * in_.channels, work, [&](int64_t task, int) {
            running_.kernels.take_apart({input_ + task * in_.plane(), in_.height, in_.width, conv_.phases.data(),
                                         static_cast<int64_t>(conv_.phases.size()), out_.height, out_.width,
                                         copy + task * conv_.channel_size});
        });
    }

    // Where masked reads of one channel begin.
    const float* source(const Tile& t, int64_t channel) const {
        return source_ + (t.image * in_.channels + channel) * conv_.channel_size + t.start;
    }

    const float* plane(int64_t image, int64_t channel) const {
        return input_ + (image * in_.channels + channel) * in_.plane();
    }

    CopyRow input_row(const float* plane, int64_t row, int64_t column, float* out, int64_t count) const {
        const bool inside = row >= 0 && row < in_.height;
        return {inside ? plane + row * in_.width : nullptr, in_.width, column, conv_.stride_w, out, count};
    }

    // The input pixels of one channel seen by one tap, for every position of the tile.
    void copy_tap(const Tile& t, int64_t channel, int64_t tap, float* out, Copies& copies) const {
        if (pointwise_ && images_ == 1) {
            copies.add({plane(t.image, channel) + t.start, t.positions, 0, 1, out, t.positions});
            return;
        }
        const int64_t down = tap / conv_.kernel_w * conv_.dilation_h - conv_.top;
        const int64_t right = tap % conv_.kernel_w * conv_.dilation_w - conv_.left;
        for (int64_t image = t.image; image < t.image + t.images; ++image) {
            const float* from = plane(image, channel);
            const int64_t end = images_ > 1 ? out_.plane() : t.start + t.positions;
            for (int64_t at = t.start; at < end;) {
                const int64_t row = at / out_.width, column = at % out_.width;
                const int64_t count = std::min(out_.width - column, end - at);
                copies.add(input_row(from, row * conv_.stride_h + down, column * conv_.stride_w + right, out, count));
                out += count;
                at += count;
            }
        }
    }

    // Column-shifted copies of the rows of one channel that the tile's taps read.
    void prepare_plane(const Tile& t, int64_t channel, float* out, Copies& copies) const {
        if (images_ > 1) {
            for (int64_t tap = 0; tap < conv_.taps; ++tap) copy_tap(t, channel, tap, out + tap * tile_, copies);
            return;
        }
        const float* from = plane(t.image, channel);
        const int64_t first = t.start / out_.width, last = (t.start + t.positions - 1) / out_.width;
        for (const Shifted& p : planes_) {
            const int64_t rows = last - first + 1 + p.most;
            const int64_t column = p.tap_column * conv_.dilation_w - conv_.left;
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t from_row = (first + row) * conv_.stride_h + p.phase - conv_.top;
                copies.add(input_row(from, from_row, column, out + p.offset + row * out_.width, out_.width));
            }
        }
    }

    // What a depthwise kernel takes to read the input itself.
    BasisLines masked_lines(const Tile& t, int64_t channel, const float* const* kernels, int64_t count) const {
        BasisLines a{};
        a.plane = source(t, channel);
        a.tap_offset = conv_.tap_offset.data();
        a.taps = conv_.taps;
        a.kernels = kernels;
        a.count = count;
        a.positions = t.positions;
        a.low = -kInfinity;
        a.high = kInfinity;
        a.masks = conv_.masks.data() + t.start / 16;
        a.mask_stride = mask_stride_;
        a.begin = t.start;
        a.width = adjacent_ ? out_.width : 0;
        return a;
    }

    void make_basis_lines(const Tile& t, const Block& block, float* lines, float* planes) const {
        if (masked_) {
            running_.kernels.masked_basis_lines(
                {source(t, 0), conv_.channel_size, t.start, adjacent_ ? out_.width : 0, conv_.runs.data() + block.run_begin,
                 block.run_end - block.run_begin, conv_.bases, conv_.taps, conv_.basis, conv_.tap_offset.data(),
                 conv_.masks.data() + t.start / 16, mask_stride_, lines, tile_, t.positions});
            return;
        }
        Copies copies{running_.kernels, {}, 0};
        const int64_t plane_size = conv_.scratch_plane / kChannelsAhead;
        const int64_t within = images_ > 1 ? 0 : t.start % out_.width;
        int64_t line = block.line_begin;
        while (line < block.line_end) {
            // Prepare a few channels, then convolve them: a load right behind its store would stall.
            int64_t starts[kChannelsAhead + 1] = {line};
            int64_t channels = 0;
            for (int64_t end = line; end < block.line_end && channels < kChannelsAhead;) {
                const int64_t channel = conv_.lines[end] / conv_.bases;
                prepare_plane(t, channel, planes + channels * plane_size, copies);
                const int64_t from = end;
                while (end < block.line_end && end - from < kMostBases && conv_.lines[end] / conv_.bases == channel) ++end;
                starts[++channels] = end;
            }
            copies.flush();
            for (int64_t i = 0; i < channels; ++i) {
                const float* kernels[kMostBases];
                const int64_t count = starts[i + 1] - starts[i];
                for (int64_t b = 0; b < count; ++b) {
                    kernels[b] = conv_.basis + conv_.lines[starts[i] + b] % conv_.bases * conv_.taps;
                }
                float* out = lines + (starts[i] - block.line_begin) * tile_;
                running_.kernels.basis_lines({planes + i * plane_size + within, offsets_.data(), conv_.taps, kernels,
                                              count, nullptr, out, tile_, t.positions, -kInfinity, kInfinity, false, nullptr, 0});
            }
            line = starts[channels];
        }
    }

    void make_copied_lines(const Tile& t, const Block& block, float* lines) const {
        if (masked_) {
            running_.kernels.tap_lines({source(t, 0), conv_.channel_size, conv_.sources.data() + block.line_begin,
                                        block.line_end - block.line_begin, conv_.tap_offset.data(),
                                        conv_.masks.data() + t.start / 16, mask_stride_, lines, tile_, t.positions});
            return;
        }
        Copies copies{running_.kernels, {}, 0};
        for (int64_t line = block.line_begin; line < block.line_end; ++line) {
            float* out = lines + (line - block.line_begin) * tile_;
            copy_tap(t, conv_.lines[line] / conv_.taps, conv_.lines[line] % conv_.taps, out, copies);
        }
        copies.flush();
    }

    void run_tile(const Tile& t, int64_t from, int64_t to, float* scratch) const {
        if (conv_.combine == Combine::kDepthwise) {
            run_depthwise(t, from, to, scratch);
            return;
        }
        float* lines = scratch;
        float* partial = lines + conv_.scratch_lines;
        float* planes = partial + conv_.scratch_partial;
        const int64_t pitch = out_.plane();
        const bool staged = images_ > 1;  // the output of several images is not one run per row
        const int64_t at = t.image * out_.size() + t.start;
        Finish finish{};
        finish.bias = conv_.bias;
        finish.partial = partial;
        finish.output = staged ? partial : output_ + at;
        finish.pitch = staged ? tile_ : pitch;
        finish.residual = residual_ && !staged ? residual_ + at : nullptr;
        finish.residual_pitch = pitch;
        finish.low = staged ? -kInfinity : conv_.low;
        finish.high = staged ? kInfinity : conv_.high;
        for (const Block& block : conv_.blocks) {
            const int64_t begin = std::max<int64_t>(from, block.row_begin), end = std::min<int64_t>(to, block.row_end);
            if (begin >= end) continue;
            const float* data = lines;
            int64_t stride = tile_;
            if (conv_.basis_lines) {
                make_basis_lines(t, block, lines, planes);
            } else {
                make_copied_lines(t, block, lines);
            }
            finish.first = block.first;
            finish.last = block.last;
            combine(block, {data, stride, t.positions}, finish, begin, end);
        }
        if (staged) {
            unstage(t, partial, from, to);
        } else if (conv_.separate_activation) {
            for (int64_t row = from; row < to; ++row) {
                running_.kernels.activate(output_ + at + row * pitch, t.positions, step_.activation, step_.slope);
            }
        }
    }

    void combine(const Block& block, const Lines& lines, const Finish& finish, int64_t begin, int64_t end) const {
        const int64_t count = block.line_end - block.line_begin;
        if (conv_.combine == Combine::kSparse) {
            SparseRows a{lines, finish, begin - block.row_begin, end - block.row_begin,
                         conv_.row_start + block.row_start, conv_.index, conv_.weight};
            // Rows are counted from the block's first.
            a.finish.bias += block.row_begin;
            a.finish.partial += block.row_begin * tile_;
            a.finish.output += block.row_begin * finish.pitch;
            if (a.finish.residual) a.finish.residual += block.row_begin * finish.residual_pitch;
            running_.kernels.sparse_rows(a);
        } else if (conv_.combine == Combine::kShared) {
            running_.kernels.shared_rows({lines, finish, begin, end, conv_.row_start + block.row_start, conv_.index,
                                          conv_.weight});
        } else if (conv_.combine == Combine::kSliced) {
            running_.kernels.sliced_rows({lines, finish, begin / kSliceRows, (end + kSliceRows - 1) / kSliceRows,
                                          conv_.row_start + block.row_start, conv_.index, conv_.weight});
        } else if (conv_.combine == Combine::kDense) {
            running_.kernels.dense_rows({lines, finish, begin, end, block.row_begin, block.row_end, count,
                                         conv_.weight + block.weight});
        } else {
            running_.kernels.dense_outputs({lines, finish, begin, end, conv_.rows, count, conv_.weight});
        }
    }

    void unstage(const Tile& t, const float* staged, int64_t from, int64_t to) const {
        const int64_t size = out_.plane();
        for (int64_t image = 0; image < t.images; ++image) {
            for (int64_t row = from; row < to; ++row) {
                const int64_t at = (t.image + image) * out_.size() + row * size;
                const float* sum = staged + row * tile_ + image * size;
                float* out = output_ + at;
                for (int64_t i = 0; i < size; ++i) {
                    const float value = residual_ ? sum[i] + residual_[at + i] : sum[i];
                    out[i] = value < conv_.low ? conv_.low : value > conv_.high ? conv_.high : value;
                }
            }
            if (conv_.separate_activation) {
                float* out = output_ + (t.image + image) * out_.size() + from * size;
                running_.kernels.activate(out, (to - from) * size, step_.activation, step_.slope);
            }
        }
    }

    // One kernel per output channel: the basis kernel of the first stage, writing straight to the output.
    void run_depthwise(const Tile& t, int64_t from, int64_t to, float* scratch) const {
        Copies copies{running_.kernels, {}, 0};
        const int64_t plane_size = conv_.scratch_plane / kChannelsAhead;
        const int64_t within = t.start % out_.width;
        const float infinity = kInfinity;
        const bool later = residual_ || conv_.separate_activation;
        const int64_t at = t.image * out_.size() + t.start;
        const auto channel_of = [&](int64_t row) { return row / conv_.multiplier; };
        for (int64_t channel = channel_of(from); channel <= channel_of(to - 1); channel += kChannelsAhead) {
            const int64_t end = std::min(channel_of(to - 1) + 1, channel + kChannelsAhead);
            for (int64_t c = channel; c < end && !masked_; ++c) {
                prepare_plane(t, c, scratch + (c - channel) * plane_size, copies);
            }
            copies.flush();
            const int64_t last = std::min(to, end * conv_.multiplier);
            for (int64_t row = std::max(from, channel * conv_.multiplier); row < last; ++row) {
                const float* kernel = conv_.weight + row * conv_.taps;
                float* out = output_ + at + row * out_.plane();
                const float* prepared = scratch + (channel_of(row) - channel) * plane_size + within;
                BasisLines a = masked_ ? masked_lines(t, channel_of(row), &kernel, 1) : BasisLines{};
                if (!masked_) {
                    a.plane = prepared;
                    a.taps = conv_.taps;
                    a.kernels = &kernel;
                    a.count = 1;
                    a.positions = t.positions;
                    a.tap_offset = offsets_.data();
                    a.masks = nullptr;
                }
                a.start = conv_.bias + row;
                a.lines = out;
                a.stride = out_.plane();
                a.low = later ? -infinity : conv_.low;
                a.high = later ? infinity : conv_.high;
                a.exact = true;
                running_.kernels.basis_lines(a);
                if (!later) continue;
                if (residual_) running_.kernels.add(out, residual_ + at + row * out_.plane(), out, t.positions);
                running_.kernels.activate(out, t.positions, step_.activation, step_.slope);
            }
        }
    }

    static constexpr float kInfinity = __builtin_inff();
    struct Shifted {
        int64_t phase, tap_column, most, offset;
    };

    const Running& running_;
    const Step& step_;
    const Convolution& conv_;
    const Shape in_, out_;
    const float* input_;
    const float* source_;
    const float* residual_;
    float* output_;
    bool pointwise_ = false, masked_ = false, adjacent_ = false;
    int64_t tile_ = 0, images_ = 1, tiles_ = 1, step_size_ = 0, rows_spanned_ = 0, mask_stride_ = 0;
    std::vector<int32_t> offsets_;
    std::vector<Shifted> planes_;
};

}  // namespace

void run_convolution(const Running& running, const Step& step) {
    if (step.conv.combine == Combine::kMixFirst) {
        run_mix_first(running, step);
    } else {
        Runner(running, step).run();
    }
}

}  // namespace penni
