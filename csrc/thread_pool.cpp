// Workers spin for a moment between steps, since the next one follows within microseconds, then sleep.
#include "thread_pool.h"

#include <limits>

namespace penni {
namespace {

constexpr int kSpins = 10000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr uint64_t packed(uint64_t first, uint64_t end) { return first << 32 | end; }
constexpr uint32_t first_of(uint64_t open) { return static_cast<uint32_t>(open >> 32); }
constexpr uint32_t end_of(uint64_t open) { return static_cast<uint32_t>(open); }
constexpr bool is_empty(uint64_t open) { return first_of(open) >= end_of(open); }

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), ranges_(new Range[static_cast<size_t>(threads)]) {
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

// Do one task of a range, if there is one left: the first, or the last.
bool ThreadPool::claim(Range& range, bool first, int worker) {
    uint64_t open = range.open.load();
    uint64_t left;
    do {
        if (is_empty(open)) return false;
        left = first ? packed(first_of(open) + 1, end_of(open)) : packed(first_of(open), end_of(open) - 1);
    } while (!range.open.compare_exchange_weak(open, left));
    // The step cannot end before this task is counted, so `task_` is that of the step whose task it is.
    (*task_)(static_cast<int64_t>(first ? first_of(open) : end_of(open) - 1), worker);
    ++done_;
    return true;
}

void ThreadPool::help(int worker) {
    while (claim(ranges_[worker], true, worker)) {
    }
    for (int other = 1; other < threads_; ++other) {
        while (claim(ranges_[(worker + other) % threads_], false, worker)) {
        }
    }
}

bool ThreadPool::idle() const {
    if (stop_.load()) return false;
    for (int worker = 0; worker < threads_; ++worker) {
        if (!is_empty(ranges_[worker].open.load())) return false;
    }
    return true;
}

void ThreadPool::run(int64_t tasks, const Task& task) {
    if (workers_.empty() || tasks <= 1 || tasks > std::numeric_limits<int32_t>::max()) {
        for (int64_t i = 0; i < tasks; ++i) task(i, 0);
        return;
    }
    task_ = &task;
    done_ = 0;
    for (int worker = 0; worker < threads_; ++worker) {
        ranges_[worker].open = packed(static_cast<uint64_t>(tasks * worker / threads_),
                                      static_cast<uint64_t>(tasks * (worker + 1) / threads_));
    }
    if (sleeping_ > 0) {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    help(0);
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
        help(worker);
    }
}

}  // namespace penni
