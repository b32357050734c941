// Running a plan. What a call needs besides the plan is in a context; contexts are kept for the next call.
#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "isa.h"
#include "run.h"

namespace penni {
namespace {

// Cache-line aligned floats, zero at first: no lane of a scratch vector may hold a number that is slow to compute with.
class Floats {
  public:
    void reserve(int64_t count) {
        if (count <= count_) return;
        std::free(data_);
        count_ = 0;
        const size_t bytes = static_cast<size_t>(count) * sizeof(float);
        // Planes lie pages apart, and large pages keep the look-ups of their addresses from missing.
        const size_t page = bytes >= kLargePage ? kLargePage : 64;
        const size_t rounded = (bytes + page - 1) / page * page;
        data_ = static_cast<float*>(std::aligned_alloc(page, rounded));
        if (!data_) throw std::bad_alloc();
#if defined(__linux__)
        if (page == kLargePage) madvise(data_, rounded, MADV_HUGEPAGE);  // only a wish: without it all is slower
#endif
        std::memset(data_, 0, rounded);
        count_ = count;
    }
    Floats() = default;
    Floats(const Floats&) = delete;
    Floats& operator=(const Floats&) = delete;
    ~Floats() { std::free(data_); }
    float* data() { return data_; }

  private:
    static constexpr size_t kLargePage = size_t{1} << 21;
    float* data_ = nullptr;
    int64_t count_ = 0;
};

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

constexpr int64_t kMostKept = 8;
// What activations may take of a second-level cache, in floats: coefficients want their part of it.
constexpr int64_t kCacheFloats = (768 << 10) / sizeof(float);
constexpr int64_t kMostAtOnce = 64;

}  // namespace

struct Context {
    Floats arena, scratch;
    std::vector<float*> values, buffers, workers;
    std::vector<double> microseconds;
#if defined(PENNI_FUZZ)
    // Every value and every worker's scratch on its own, so that the sanitizer sees a step leave its own.
    std::vector<std::unique_ptr<Floats>> apart;
    float* alone(int64_t count) {
        apart.push_back(std::make_unique<Floats>());
        apart.back()->reserve(count);
        return apart.back()->data();
    }
#endif
};

Engine::Engine(const int64_t* words, int64_t count, const uint8_t* weights, int64_t bytes, int threads)
    : kernels_(choose_kernels()), plan_(decode_plan(words, count, weights, bytes)), threads_(threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("the number of threads must be from 1 to 1024");
    if (threads > 1) pool_ = std::make_unique<ThreadPool>(threads);
}

Engine::~Engine() = default;

int64_t Engine::arena_bytes(int64_t batch, int64_t at_once) const {
    const int64_t images = std::min(batch, at_once);
    const int64_t arenas = apart((batch + images - 1) / images) ? threads_ : 1;
    return (plan_.arena * images * arenas + plan_.scratch * threads_) * static_cast<int64_t>(sizeof(float));
}

int64_t Engine::images_for_cache() const {
    return std::clamp<int64_t>(kCacheFloats / std::max<int64_t>(1, plan_.arena), 1, kMostAtOnce);
}

std::unique_ptr<Context> Engine::take(int64_t images, int workers) {
    std::unique_ptr<Context> context;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            context = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!context) context = std::make_unique<Context>();
    context->arena.reserve(plan_.arena * images + 16);
    const int64_t each = (plan_.scratch + 127) / 16 * 16;
    context->scratch.reserve(each * workers);
    context->workers.clear();
    for (int worker = 0; worker < workers; ++worker) context->workers.push_back(context->scratch.data() + worker * each);
#if defined(PENNI_FUZZ)
    context->apart.clear();
    for (float*& worker : context->workers) worker = context->alone(plan_.scratch);
#endif
    return context;
}

void Engine::give_back(std::unique_ptr<Context> context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(idle_.size()) < std::max<int64_t>(kMostKept, threads_)) idle_.push_back(std::move(context));
}

void Engine::bind(Context& context, const Piece& piece) const {
    context.buffers.clear();
    for (const Buffer& buffer : plan_.buffers) {
        float* start = nullptr;  // of a value that is kept elsewhere
        if (buffer.input >= 0) {
            // Inputs are read where the caller has them; no step writes to one.
            const int64_t size = plan_.values[plan_.inputs[buffer.input]].shape.size();
            start = const_cast<float*>(piece.inputs[buffer.input]) + piece.first * size;
        } else if (buffer.offset >= 0) {
            start = context.arena.data() + buffer.offset * piece.images;
#if defined(PENNI_FUZZ)
            start = context.alone(buffer.size * piece.images);
#endif
        }
        context.buffers.push_back(start);
    }
    context.values.clear();
    for (const Value& value : plan_.values) {
        context.values.push_back(value.buffer < 0 ? nullptr : context.buffers[value.buffer]);
    }
}

void Engine::run_piece(Context& context, const Piece& piece, ThreadPool* pool, double* microseconds) const {
    bind(context, piece);
    const Running running{plan_, kernels_, pool, piece.images, context.values.data(), context.buffers.data(),
                          context.workers.data()};
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
        const Step& step = plan_.steps[i];
        const auto start = microseconds ? Clock::now() : Clock::time_point();
        if (step.op == Op::kConvolution) {
            run_convolution(running, step);
        } else {
            run_simple(running, step);
        }
        if (microseconds) microseconds[i] += since(start);
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
        const int64_t size = plan_.values[plan_.outputs[i]].shape.size();
        std::memcpy(piece.outputs[i] + piece.first * size, context.values[plan_.outputs[i]],
                    static_cast<size_t>(size * piece.images) * sizeof(float));
    }
}

void Engine::run(const float* const* inputs, float* const* outputs, int64_t batch, int64_t at_once,
                 double* microseconds) {
    if (batch < 1 || at_once < 1 || plan_.arena > (int64_t{1} << 40) / batch) {
        throw std::invalid_argument("the batch is empty or too large");
    }
    const int64_t images = std::min(batch, at_once), pieces = (batch + images - 1) / images;
    const auto piece_of = [&](int64_t piece) {
        return Piece{inputs, outputs, piece * images, std::min(images, batch - piece * images)};
    };
    std::unique_lock<std::mutex> turn;
    if (pool_) turn = std::unique_lock<std::mutex>(pool_->busy(), std::try_to_lock);
    ThreadPool* const pool = turn.owns_lock() ? pool_.get() : nullptr;
    if (microseconds) std::fill(microseconds, microseconds + plan_.steps.size(), 0.0);
    const int64_t own = pool ? apart(pieces) : 0;
    if (own > 0) {
        std::vector<std::unique_ptr<Context>> contexts;
        for (int worker = 0; worker < threads_; ++worker) {
            contexts.push_back(take(images, 1));
            contexts.back()->microseconds.assign(microseconds ? plan_.steps.size() : 0, 0.0);
        }
        pool->run(own, [&](int64_t piece, int worker) {
            Context& context = *contexts[static_cast<size_t>(worker)];
            run_piece(context, piece_of(piece), nullptr, microseconds ? context.microseconds.data() : nullptr);
        });
        for (std::unique_ptr<Context>& context : contexts) {
            // So many steps ran at the same time.
            for (size_t i = 0; i < context->microseconds.size(); ++i) microseconds[i] += context->microseconds[i] / threads_;
            give_back(std::move(context));
        }
    }
    if (own < pieces) {
        std::unique_ptr<Context> context = take(images, threads_);
        for (int64_t piece = own; piece < pieces; ++piece) run_piece(*context, piece_of(piece), pool, microseconds);
        give_back(std::move(context));
    }
}

}  // namespace penni
