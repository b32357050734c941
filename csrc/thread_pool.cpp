// Workers spin for a moment between steps, since the next one follows within microseconds, then sleep.
#include "thread_pool.h"

#include <chrono>

namespace penni {
namespace {

constexpr int kSpins = 4000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        ++round_;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::share(int worker) {
    for (int64_t task = next_++; task < tasks_; task = next_++) (*task_)(task, worker);
}

void ThreadPool::run(int64_t tasks, const Task& task) {
    if (workers_.empty() || tasks <= 1) {
        for (int64_t i = 0; i < tasks; ++i) task(i, 0);
        return;
    }
    tasks_ = tasks;
    task_ = &task;
    next_ = 0;
    working_ = static_cast<int>(workers_.size());
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++round_;
    }
    wake_.notify_all();
    share(0);
    // Everybody has to leave before the next step may change what they share.
    for (int spin = 0; working_ > 0; ++spin) {
        if (spin < kSpins) {
            pause();
        } else {
            std::this_thread::yield();
        }
    }
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    while (true) {
        for (int spin = 0; spin < kSpins && round_ == seen; ++spin) pause();
        if (round_ == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return round_ != seen; });
        }
        if (stop_) return;
        seen = round_;
        share(worker);
        --working_;
    }
}

}  // namespace penni
