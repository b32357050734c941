// A few threads that share out the tasks of one step after another.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
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
    int threads() const { return threads_; }
    // Every task once, the caller's thread helping as worker 0. One caller at a time.
    //
    // Each worker begins with its own run of neighbouring tasks, the same from step to step, so that what it wrote in one
    // step it mostly finds in its own cache in the next; whoever is done takes from the end of the others'.
    void run(int64_t tasks, const Task& task);
    // Held for a whole inference; whoever does not get it works alone.
    std::mutex& busy() { return busy_; }

  private:
    // The tasks of one worker that nobody has claimed yet: the first in the upper half, the end in the lower. Whoever comes
    // late finds it empty, and nobody has to wait for a thread that is still asleep.
    struct alignas(64) Range {
        std::atomic<uint64_t> open{0};
    };

    void work(int worker);
    void help(int worker);
    bool claim(Range& range, bool first, int worker);
    bool idle() const;

    const int threads_;
    std::unique_ptr<Range[]> ranges_;
    std::vector<std::thread> workers_;
    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    std::atomic<int64_t> done_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
    const Task* task_ = nullptr;
};

}  // namespace penni
