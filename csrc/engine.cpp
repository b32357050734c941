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

}  // namespace

struct Context {
    Floats arena, scratch;
    std::vector<float*> values, buffers, workers;
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

int64_t Engine::arena_bytes(int64_t batch) const {
    return (plan_.arena * batch + plan_.scratch * threads_) * static_cast<int64_t>(sizeof(float));
}

std::unique_ptr<Context> Engine::take(int64_t batch) {
    std::unique_ptr<Context> context;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            context = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!context) context = std::make_unique<Context>();
    if (batch < 1 || plan_.arena > (int64_t{1} << 40) / batch) throw std::invalid_argument("the batch is empty or too large");
    context->arena.reserve(plan_.arena * batch + 16);
    const int64_t each = (plan_.scratch + 127) / 16 * 16;
    context->scratch.reserve(each * threads_);
    context->workers.clear();
    for (int worker = 0; worker < threads_; ++worker) context->workers.push_back(context->scratch.data() + worker * each);
#if defined(PENNI_FUZZ)
    for (float*& worker : context->workers) worker = context->alone(plan_.scratch);
#endif
    return context;
}

void Engine::give_back(std::unique_ptr<Context> context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(idle_.size()) < kMostKept) idle_.push_back(std::move(context));
}

void Engine::bind(Context& context, const float* const* inputs, int64_t batch) const {
    context.buffers.clear();
    for (const Buffer& buffer : plan_.buffers) {
        // Inputs are read where the caller has them; no step writes to one.
        context.buffers.push_back(buffer.input >= 0 ? const_cast<float*>(inputs[buffer.input])
                                                    : context.arena.data() + buffer.offset * batch);
#if defined(PENNI_FUZZ)
        if (buffer.input < 0) context.buffers.back() = context.alone(buffer.size * batch);
#endif
    }
    context.values.clear();
    for (const Value& value : plan_.values) {
        context.values.push_back(value.buffer < 0 ? nullptr : context.buffers[value.buffer]);
    }
}

void Engine::run(const float* const* inputs, float* const* outputs, int64_t batch, double* microseconds) {
    std::unique_ptr<Context> context = take(batch);
    bind(*context, inputs, batch);
    std::unique_lock<std::mutex> turn;
    if (pool_) turn = std::unique_lock<std::mutex>(pool_->busy(), std::try_to_lock);
    const Running running{plan_, kernels_, turn.owns_lock() ? pool_.get() : nullptr, batch, context->values.data(),
                          context->buffers.data(), context->workers.data()};
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
        const Step& step = plan_.steps[i];
        const auto start = microseconds ? Clock::now() : Clock::time_point();
        if (step.op == Op::kConvolution) {
            run_convolution(running, step);
        } else {
            run_simple(running, step);
        }
        if (microseconds) microseconds[i] = since(start);
    }
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
        const Value& value = plan_.values[plan_.outputs[i]];
        std::memcpy(outputs[i], context->values[plan_.outputs[i]],
                    static_cast<size_t>(value.shape.size() * batch) * sizeof(float));
    }
    give_back(std::move(context));
}

}  // namespace penni
