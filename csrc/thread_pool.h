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
    void share(int worker);

    std::vector<std::thread> workers_;
    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> working_{0};
    std::atomic<bool> stop_{false};
    int64_t tasks_ = 0;
    const Task* task_ = nullptr;
};

}  // namespace penni
