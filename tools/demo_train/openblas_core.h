// Picks OpenBLAS's kernels from what the processor can do. A distribution's OpenBLAS that is older
// than the processor does not know its family and takes slow kernels (measured: up to 4x slower);
// its choice is made while the library loads, so the only moment to speak is the environment of the
// exec.
#pragma once

#include <string>

namespace demo {

// Called first in main(). Sets OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS=1 where the user has not,
// and starts this program again if one of them was missing. Returns when nothing is to be done, or
// when the program file cannot be started again: slow is better than not at all.
void restart_with_openblas_core(char** argv);

// Kernels in use, for the record: "SkylakeX", ...
std::string openblas_core_in_use();

}  // namespace demo
