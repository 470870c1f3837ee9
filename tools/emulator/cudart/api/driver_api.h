// Functions of the CUDA driver that programs get from cudaGetDriverEntryPoint.
#pragma once

#include <string_view>

namespace slimwire::emulator {

// Null: there is none of this name.
void* driver_function(std::string_view name);

}  // namespace slimwire::emulator
