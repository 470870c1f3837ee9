// PowerSGD's operations timed on the device. Called by main.cpp.
#pragma once

namespace slimwire::gpu {

// One JSON line each: orthogonalising 200 matrices at once, by rows and rank in microseconds; and
// the products and the restoring of a large buffer of bf16 matrices beside a copy that moves as
// many bytes.
void measure_low_rank();

}  // namespace slimwire::gpu
