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
    // `inputs` and `outputs` hold `batch` images each. `microseconds`, if not null, gets one number per step.
    void run(const float* const* inputs, float* const* outputs, int64_t batch, double* microseconds);
    int64_t arena_bytes(int64_t batch) const;

  private:
    std::unique_ptr<Context> take(int64_t batch);
    void give_back(std::unique_ptr<Context> context);
    void bind(Context& context, const float* const* inputs, int64_t batch) const;

    const KernelTable& kernels_;
    const Plan plan_;
    const int threads_;
    std::unique_ptr<ThreadPool> pool_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Context>> idle_;
};

}  // namespace penni
