// Kernels of codec blocktopk, and of rowtopk: rows are groups as blocks are. See sparse_groups.cuh.
#include "codecs/sparse_groups.cuh"
