// An engine: a checked plan and what it takes to run it, from several threads at once.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "plan.h"
#include "thread_pool.h"

namespace penni {

struct Context;

class Engine {
  public:
    Engine(const int64_t* words, int64_t count, const uint8_t* weights, int64_t bytes, int threads);
    ~Engine();
    const Plan& plan() const { return plan_; }
    const KernelTable& kernels() const { return kernels_; }
    int threads() const { return threads_; }
    // `inputs` and `outputs` hold `batch` images each, which go through the network `at_once` at a time.
    // `microseconds`, if not null, gets one number per step.
    void run(const float* const* inputs, float* const* outputs, int64_t batch, int64_t at_once, double* microseconds);
    int64_t arena_bytes(int64_t batch, int64_t at_once) const;
    // As many images as have their activations in a second-level cache, at least one.
    int64_t images_for_cache() const;

  private:
    // Some images of a batch.
    struct Piece {
        const float* const* inputs;
        float* const* outputs;
        int64_t first, images;
    };
    std::unique_ptr<Context> take(int64_t images, int workers);
    void give_back(std::unique_ptr<Context> context);
    void bind(Context& context, const Piece& piece) const;
    void run_piece(Context& context, const Piece& piece, ThreadPool* pool, double* microseconds) const;
    // How many of so many pieces are run by a thread of their own; all threads together run the others.
    int64_t apart(int64_t pieces) const { return threads_ > 1 ? pieces / threads_ * threads_ : 0; }

    const KernelTable& kernels_;
    const Plan plan_;
    const int threads_;
    std::unique_ptr<ThreadPool> pool_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Context>> idle_;
};

}  // namespace penni
