// Numbers that become known when compiling: how many vectors, lines or rows a loop works on at once.
#pragma once
#include "vec.h"

namespace {

template <int N>
struct Number {
    static constexpr int value = N;
};

// Calls `function` with `number`, which is 1 to `Most`, as a type.
template <int Most, typename Function>
PENNI_INLINE void with_number(int64_t number, Function&& function) {
    if constexpr (Most > 1) {
        if (number < Most) return with_number<Most - 1>(number, function);
    }
    function(Number<Most>{});
}

// Calls `function` with the vectors, the first position and the number of positions of one chunk after another. Nine vectors
// are better done as five and four than as eight and one, so chunks are as equal as can be.
template <int Most, typename Function>
PENNI_INLINE void each_chunk(int64_t positions, Function&& function) {
    for (int64_t at = 0; at < positions;) {
        const int64_t left = (positions - at + Vec::kLanes - 1) / Vec::kLanes;
        const int64_t chunks = (left + Most - 1) / Most;
        const int64_t vectors = (left + chunks - 1) / chunks;
        const int64_t wide = vectors * Vec::kLanes;
        const int64_t count = positions - at < wide ? positions - at : wide;
        with_number<Most>(vectors, [&](auto known) __attribute__((always_inline)) { function(known, at, count); });
        at += count;
    }
}

}  // namespace
