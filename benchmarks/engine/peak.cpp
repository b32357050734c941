// How many multiply-accumulates a core does in a second when nothing but arithmetic limits it: prints 10⁹ per second.
#include <immintrin.h>

#include <chrono>
#include <cstdio>

#if defined(__AVX512F__)
using Register = __m512;
static Register all(float x) { return _mm512_set1_ps(x); }
static Register fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Register = __m256;
static Register all(float x) { return _mm256_set1_ps(x); }
static Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
#endif

int main() {
    constexpr int kChains = 12;  // enough to hide the latency, few enough for sixteen registers
    constexpr long kRounds = 20000000;
    double best = 0;
    volatile float sink = 0;
    for (int repeat = 0; repeat < 7; ++repeat) {
        Register sum[kChains];
        for (Register& s : sum) s = all(1.0f);
        const Register factor = all(0.999f), term = all(0.001f);
        const auto begun = std::chrono::steady_clock::now();
        for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
            for (int chain = 0; chain < kChains; ++chain) sum[chain] = fma(sum[chain], factor, term);
        }
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        for (const Register& s : sum) sink = sink + reinterpret_cast<const float*>(&s)[0];
        const double rate = kRounds * kChains * (sizeof(Register) / sizeof(float)) / seconds / 1e9;
        if (rate > best) best = rate;
    }
    std::printf("%.2f\n", best);
}
