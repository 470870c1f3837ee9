// A linear autoencoder between two ranks, whose messages answer each other, learns both of its
// matrices as part of the network around it (MCBench: Bian et al., MLSys 2024): E of the sender and
// D of the receiver, both columns x rank. With the operations of low_rank.h, X given and G the
// gradient of what arrives:
//
//   begin, orthogonalise   E and D, alike                (on the layout of the transposed matrices)
//   multiply_right         Z = X E at the sender               then: Z to the receiver
//   restore                X' = Z D^T
//   multiply_right         W = G D at the receiver             then: W to the sender
//   restore                W E^T, the gradient of X
//   multiply_left          G^T Z and X^T W, the gradients of D and E at the two ends: learn
//
// Host bodies and kernels, equal to the bit. Called by the algorithms in collectives/.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/args.h"
#include "codecs/base/device.h"
#include "codecs/base/status.h"
#include "codecs/low_rank/learn_args.h"

namespace slimwire {

void learn_on_host(const LearnArgs& args);
void take_kept_on_host(const TakeKeptArgs& args);
// Enqueue on `stream`; as enqueue() of a codec operation.
Status enqueue(const DeviceApi& api, const LearnArgs& args, cudaStream_t stream);
Status enqueue(const DeviceApi& api, const TakeKeptArgs& args, cudaStream_t stream);

}  // namespace slimwire
