// Workers spin for a moment between steps, since the next one follows within microseconds, then sleep.
#include "thread_pool.h"

#include <limits>

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
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

// Do one task of the present round, if there is one left.
bool ThreadPool::claim(int worker) {
    uint64_t open = open_.load();
    do {
        if (static_cast<uint32_t>(open) == 0) return false;
    } while (!open_.compare_exchange_weak(open, open - 1));
    // The round cannot end before this task is counted, so `task_` is still the one that was opened.
    (*task_)(static_cast<int64_t>(static_cast<uint32_t>(open)) - 1, worker);
    ++done_;
    return true;
}

void ThreadPool::run(int64_t tasks, const Task& task) {
    if (workers_.empty() || tasks <= 1 || tasks > std::numeric_limits<uint32_t>::max()) {
        for (int64_t i = 0; i < tasks; ++i) task(i, 0);
        return;
    }
    task_ = &task;
    done_ = 0;
    const uint64_t round = (open_.load() >> 32) + 1;
    open_ = round << 32 | static_cast<uint64_t>(tasks);
    if (sleeping_ > 0) {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    while (claim(0)) {
    }
    for (int spin = 0; done_ < tasks; ++spin) {
        if (spin < kSpins) {
            pause();
        } else {
            std::this_thread::yield();
        }
    }
}

void ThreadPool::work(int worker) {
    while (!stop_) {
        for (int spin = 0; spin < kSpins && idle(); ++spin) pause();
        if (idle()) {
            std::unique_lock<std::mutex> lock(mutex_);
            ++sleeping_;
            wake_.wait(lock, [&] { return !idle(); });
            --sleeping_;
        }
        while (claim(worker)) {
        }
    }
}

}  // namespace penni
