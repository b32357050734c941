// A few threads that share out the tasks of one step after another.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace penni {

using Task = std::function<void(int64_t task, int worker)>;

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    int threads() const { return static_cast<int>(workers_.size()) + 1; }
    // Every task once, the caller's thread helping as worker 0. One caller at a time.
    void run(int64_t tasks, const Task& task);
    // Held for a whole inference; whoever does not get it works alone.
    std::mutex& busy() { return busy_; }

  private:
    void work(int worker);
    bool claim(int worker);
    bool idle() const { return static_cast<uint32_t>(open_.load()) == 0 && !stop_.load(); }

    std::vector<std::thread> workers_;
    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    // The round in the upper half, the tasks nobody has claimed yet in the lower: whoever comes late claims nothing,
    // and nobody has to wait for a thread that is still asleep.
    std::atomic<uint64_t> open_{0};
    std::atomic<int64_t> done_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
    const Task* task_ = nullptr;
};

}  // namespace penni
