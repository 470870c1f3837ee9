// How the ranks of `slimwire bench collective` meet: rank 0 makes the unique id and hands it to the
// others, over one TCP connection each.
#pragma once

#include <nccl.h>

#include <string>

namespace slimwire::bench {

// Says what is wrong and ends the program with exit code 1.
[[noreturn]] void stop(const std::string& text);

// The unique id of the job; `host` is where rank 0 listens on `port`. Ranks wait
// at most a minute for each other.
ncclUniqueId meet(const char* host, int port, int rank, int ranks);

}  // namespace slimwire::bench
