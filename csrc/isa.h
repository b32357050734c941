// Which kernel set this machine runs.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace penni {

// Every set that was built and that this machine can run, fastest first.
std::vector<const KernelTable*> available_kernels();

// The fastest, or the one that PENNI_ISA names; throws std::invalid_argument if it cannot be had.
const KernelTable& choose_kernels();

}  // namespace penni
