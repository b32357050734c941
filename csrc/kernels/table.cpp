// One kernel set. CMake compiles this unit once per instruction set, with that set's flags and PENNI_SET.
#include "combine.h"
#include "mix.h"
#include "simple.h"
#include "spread.h"
#include "table.h"

#define PENNI_TEXT_(x) #x
#define PENNI_TEXT(x) PENNI_TEXT_(x)
#define PENNI_JOIN_(a, b) a##b
#define PENNI_JOIN(a, b) PENNI_JOIN_(a, b)

const penni::KernelTable* penni::PENNI_JOIN(PENNI_SET, _kernels)() {
    static const KernelTable table = {
        PENNI_TEXT(PENNI_SET), static_cast<int>(Vec::kLanes), kReadsMasked,
        sparse_rows, shared_rows, sliced_rows, dense_rows, dense_outputs,
        basis_lines, kMaskedBasisLines, kTapLines, mixed_planes, mixed_rows, copy_rows, take_apart,
        activate, pool, pool_pairs, add, multiply, scale_shift, sum, softmax, layer_norm,
    };
    return &table;
}
