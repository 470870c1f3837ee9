// How the processes of one test job exchange a few bytes without any network: files in the folder
// $TEST_FOLDER, which run_ranks() makes. For the programs under test, which know nothing of
// slimwire.
#pragma once

#include <string>

namespace slimwire::test {

// Makes `bytes` visible to the others under `name`, at once and whole.
void publish(const std::string& name, const std::string& bytes);
// Waits for what another process publishes under `name`; throws std::runtime_error after `limit_s`.
std::string await(const std::string& name, int limit_s = 30);
// Returns when all ranks have come to the place `name`.
void barrier(const std::string& name, int rank, int ranks);

}  // namespace slimwire::test
