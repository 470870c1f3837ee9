// CodecDescriptor::check of the sparsifiers (sparse.cpp).
#pragma once

#include "codecs/base/status.h"
#include "codecs/sparse/sparse_plan.h"

namespace slimwire {

Result<int64_t> sparse_check(const SparsePlan& plan, const uint8_t* bytes, int64_t size);

}  // namespace slimwire
