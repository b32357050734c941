// Running a decomposed convolution the other way round: mix the input channels into one plane per output row and basis
// kernel, then convolve each plane with its kernel and sum those of a row.
//
// Convolving is the costly part, and there are as many planes to convolve as rows have bases, not channels: this pays
// where there are fewer rows than channels. Planes are made some rows at a time, so that they stay in the cache. Above and
// below a plane are zeros for the padding; what the columns of a kernel see beyond a row's ends is masked.
#include <algorithm>
#include <cstring>

#include "run.h"

namespace penni {
namespace {

// Channels of planes larger than this lie so far apart that they would share few places of the cache.
constexpr int64_t kSmallPlane = 128;

class Mixer {
  public:
    Mixer(const Running& running, const Step& step)
        : running_(running), step_(step), conv_(step.conv), mix_(step.conv.mix),
          in_(running.plan.values[step.inputs[0]].shape), out_(running.plan.values[step.output].shape),
          input_(running.values[step.inputs[0]]),
          residual_(step.inputs.size() == 2 ? running.values[step.inputs[1]] : nullptr),
          output_(running.values[step.output]) {}

    void run() const {
        const int64_t bands = (out_.height + mix_.band - 1) / mix_.band, tasks = running_.batch * bands;
        const int64_t blocks = static_cast<int64_t>(conv_.blocks.size());
        const double work = conv_.macs / 8 * static_cast<double>(running_.batch);
        int64_t parts = 1;
        if (running_.pool && work > kWorthSharing && tasks < running_.threads()) {
            parts = std::min<int64_t>((running_.threads() + tasks - 1) / tasks, blocks);
        }
        running_.each(tasks * parts, work, [&](int64_t task, int worker) {
            const int64_t part = task % parts, band = task / parts % bands, image = task / parts / bands;
            run_band(image, band * mix_.band, blocks * part / parts, blocks * (part + 1) / parts, running_.scratch[worker]);
        });
    }

  private:
    void run_band(int64_t image, int64_t row, int64_t from, int64_t to, float* scratch) const {
        float* planes = scratch + conv_.scratch_lines;
        float* columns = planes + conv_.scratch_plane;
        const int64_t rows = std::min(mix_.band, out_.height - row);
        // The rows of the image among those that the taps read, the first of which is `top`.
        const int64_t top = row - conv_.top, reach = (conv_.kernel_h - 1) * conv_.dilation_h;
        const int64_t begin = std::clamp<int64_t>(top, 0, in_.height);
        const int64_t end = std::clamp(top + rows + reach, begin, in_.height);
        const bool copied = begin < end && !as_they_are(begin, end);
        if (copied) copy_lines(image, begin, end, scratch);
        std::memset(planes, 0, static_cast<size_t>(conv_.most_lines * mix_.plane_stride + mix_.lead) * sizeof(float));

        const int64_t at = image * out_.size() + row * out_.width;
        MixedRows sums{};
        sums.planes = planes + mix_.lead + (top - begin) * mix_.pitch;
        sums.plane_stride = mix_.plane_stride;
        sums.first = mix_.first.data();
        sums.plane = mix_.plane.data();
        sums.kernel = mix_.kernel.data();
        sums.repeats = mix_.repeats.data();
        sums.basis = conv_.basis;
        sums.kernel_h = conv_.kernel_h;
        sums.kernel_w = conv_.kernel_w;
        sums.down = conv_.dilation_h * mix_.pitch;
        sums.right = conv_.dilation_w;
        sums.left = conv_.left;
        sums.positions = rows * mix_.pitch;
        sums.columns = columns + conv_.left;
        sums.column_stride = mix_.column_stride;
        sums.masks = mix_.masks.data();
        sums.mask_stride = mix_.mask_stride;
        sums.bias = conv_.bias;
        sums.output = output_ + at;
        sums.residual = residual_ ? residual_ + at : nullptr;
        sums.pitch = out_.plane();
        const bool whole = out_.width == mix_.pitch;
        sums.runs = whole ? 1 : rows;
        sums.run = whole ? rows * out_.width : out_.width;
        sums.run_pitch = mix_.pitch;
        sums.low = conv_.low;
        sums.high = conv_.high;

        for (int64_t i = from; i < to; ++i) {
            const Block& block = conv_.blocks[static_cast<size_t>(i)];
            const float* source = scratch;
            for (int64_t first = begin; first < end; first += mix_.piece, source += in_.channels * mix_.line_stride) {
                const int64_t positions = std::min(mix_.piece, end - first) * mix_.pitch;
                const Lines lines = copied ? Lines{source, mix_.line_stride, positions}
                                           : Lines{input_ + image * in_.size() + first * in_.width, in_.plane(), positions};
                running_.kernels.mixed_planes({lines, block.line_end - block.line_begin, conv_.row_start + block.line_begin,
                                               conv_.index, conv_.weight,
                                               planes + mix_.lead + (first - begin) * mix_.pitch, mix_.plane_stride});
            }
            sums.row_begin = block.row_begin;
            sums.row_end = block.row_end;
            running_.kernels.mixed_rows(sums);
            for (int64_t r = block.row_begin; r < block.row_end && conv_.separate_activation; ++r) {
                running_.kernels.activate(output_ + at + r * out_.plane(), rows * out_.width, step_.activation, step_.slope);
            }
        }
    }

    // Whether lines can be read in the input itself: nothing is then read beyond their ends.
    bool as_they_are(int64_t begin, int64_t end) const {
        return in_.width == mix_.pitch && in_.plane() <= kSmallPlane && end - begin <= mix_.piece &&
               (end - begin) * mix_.pitch % 16 == 0;
    }

    // Rows `begin` to `end` of every channel, in pieces: all channels of a piece lie together.
    void copy_lines(int64_t image, int64_t begin, int64_t end, float* out) const {
        Copies copies{running_.kernels, {}, 0};
        const bool whole = in_.width == mix_.pitch;
        for (int64_t first = begin; first < end; first += mix_.piece) {
            const int64_t height = std::min(mix_.piece, end - first), rows = whole ? 1 : height;
            const int64_t width = whole ? height * in_.width : in_.width;
            for (int64_t channel = 0; channel < in_.channels; ++channel, out += mix_.line_stride) {
                const float* from = input_ + (image * in_.channels + channel) * in_.plane() + first * in_.width;
                for (int64_t row = 0; row < rows; ++row) {
                    copies.add({from + row * width, width, 0, 1, out + row * mix_.pitch, whole ? width : mix_.pitch});
                }
            }
        }
        copies.flush();
    }

    const Running& running_;
    const Step& step_;
    const Convolution& conv_;
    const Mixing& mix_;
    const Shape in_, out_;
    const float* input_;
    const float* residual_;
    float* output_;
};

}  // namespace

void run_mix_first(const Running& running, const Step& step) { Mixer(running, step).run(); }

}  // namespace penni
