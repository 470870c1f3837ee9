// Values at positions that both ends of a message know: the answer to an encoding of topk carries
// the elements that this one kept, and no positions (Dynamic Communication Thresholding, Gupta et
// al., KDD 2021, model parallel). Not a codec: what is decoded is an encoding again.
//
// Called by the algorithms in collectives/. Host bodies and kernels, equal to the bit; layout:
// FORMAT.md, "Masked values".
#pragma once

#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/sparse/masked_values_args.h"

namespace slimwire {

void gather_masked_on_host(const GatherMaskedArgs& args);
void join_masked_on_host(const JoinMaskedArgs& args);

// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const GatherMaskedArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const JoinMaskedArgs& args, cudaStream_t stream);

}  // namespace slimwire
