// A saved state laid out for another number of ranks (`slimwire state convert`): its atoms, in one
// file that every rank reads, and takes its part of. Reads and writes piece by piece.
#pragma once

#include <string>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Writes files state.0, state.1, ... of `ranks` ranks, which are one, to the folder `to`, new or
// empty. What owners of other parts of the tensors kept is taken apart by the patterns of atoms.h;
// `drop`: atoms that cannot be are left out, each with a note, else they are an error that names
// it. kInvalidUsage where the state is not whole.
Status convert_state(const std::string& from, int ranks, bool drop, const std::string& to);

}  // namespace slimwire::cli
