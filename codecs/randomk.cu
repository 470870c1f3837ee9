// Kernels of codec randomk. See sparse_runs.cuh.
#include "codecs/sparse_runs.cuh"
