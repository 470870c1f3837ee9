// What a call's own configuration (NCCL 2.31's *Config twins) asks of slimwire, through the list of
// extensions that NCCL leaves to other vendors: a codec for this one call. It enters the call's
// facts, so the plan follows from it as from a rule, and must be equal on all ranks as NCCL asks of
// the whole configuration.
//
//   ncclConfigExt_t codec = {NULL, {0x534c57, 1}, {.s = "int4:block=64"}};
//   ncclConfigExt_t feedback = {&codec, {0x534c57, 2}, {.s = "ef14"}};
#pragma once

#include <nccl_later.h>

#include <cstdint>
#include <string>

#include "codecs/base/status.h"
#include "collectives/policy.h"

namespace slimwire {

inline constexpr int kChoiceVendor = 0x534c57;  // "SLW"
// Options of the list; others of our vendor id are errors, those of other vendors are not looked
// at.
inline constexpr int kChoiceCodec = 1;          // string: a codec, or "native"
inline constexpr int kChoiceErrorFeedback = 2;  // string: as a rule's; with a codec

// Checks the configuration as far as it is read (size, magic, version, the list) and returns what
// it asks for as a number that is equal wherever the same is asked for; 0: nothing. After the first
// sight of a pair of texts on a thread it neither locks, allocates nor parses. `function` is for
// messages.
Result<uint64_t> read_choice(const ncclCollConfig_t& config, const char* function);

// What read_choice() of this process returned a number for; null for any other.
const Action* find_choice(uint64_t asked);

}  // namespace slimwire
