// Running one step: what the executor hands over.
#pragma once
#include "kernels/table.h"
#include "plan.h"
#include "thread_pool.h"

namespace penni {

constexpr double kWorthSharing = 32768;

struct Running {
    const Plan& plan;
    const KernelTable& kernels;
    ThreadPool* pool;  // null: work alone
    int64_t batch;
    float* const* values;   // start of every value, image 0
    float* const* buffers;  // start of every buffer
    float* const* scratch;  // per worker

    int threads() const { return pool ? pool->threads() : 1; }
    // `work` in floats read or multiply-accumulates / 8, roughly: little of it is not worth another thread.
    void each(int64_t tasks, double work, const Task& task) const {
        if (pool && work > kWorthSharing) {
            pool->run(tasks, task);
        } else {
            for (int64_t i = 0; i < tasks; ++i) task(i, 0);
        }
    }
};

// Collects row copies and does them some at a time.
struct Copies {
    static constexpr int64_t kMost = 64;
    const KernelTable& kernels;
    CopyRow rows[kMost];
    int64_t count = 0;
    void add(const CopyRow& row) {
        if (count == kMost) flush();
        rows[count++] = row;
    }
    void flush() {
        kernels.copy_rows(rows, count);
        count = 0;
    }
};

void run_convolution(const Running& running, const Step& step);
void run_mix_first(const Running& running, const Step& step);
void run_simple(const Running& running, const Step& step);

}  // namespace penni
