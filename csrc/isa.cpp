// Asking the processor, and the environment.
#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace penni {

std::vector<const KernelTable*> available_kernels() {
    std::vector<const KernelTable*> sets;
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(PENNI_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        sets.push_back(avx512_kernels());
    }
#endif
#if defined(PENNI_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(avx2_kernels());
#endif
#endif
#if defined(PENNI_HAS_NEON)
    sets.push_back(neon_kernels());
#endif
    sets.push_back(portable_kernels());
    return sets;
}

const KernelTable& choose_kernels() {
    const auto sets = available_kernels();
    const char* wanted = std::getenv("PENNI_ISA");
    if (!wanted || !*wanted) return *sets.front();
    std::string names;
    for (const KernelTable* set : sets) {
        if (std::string(set->name) == wanted) return *set;
        names += (names.empty() ? "" : ", ") + std::string(set->name);
    }
    throw std::invalid_argument("PENNI_ISA is '" + std::string(wanted) + "', but this machine runs only: " + names);
}

}  // namespace penni
