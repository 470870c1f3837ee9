// A saved state laid out for another number of ranks (`slimwire state convert`): its atoms, in one
// file that every rank reads, and takes its part of; where groups of ranks have some, in a file of
// each rank. Reads and writes piece by piece.
#pragma once

#include <string>

#include "codecs/base/status.h"
#include "collectives/state/conversion.h"

namespace slimwire::cli {

// Writes files state.0, state.1, ... of `ranks` ranks to the folder `to`, new or empty, with a note
// of what is left out. kInvalidUsage where the state is not whole.
Status convert_state(const std::string& from,
                     int ranks,
                     ConversionOptions options,
                     const std::string& to);

}  // namespace slimwire::cli
