// The traces in tests/collectives/identity/ddp/traces are what PyTorch makes of the models in
// models.py.
#include <filesystem>
#include <set>

#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

std::set<std::string> names_in(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".jsonl") {
            names.insert(entry.path().filename().string());
        }
    }
    return names;
}

using TorchTraces = TorchTest;

TEST_F(TorchTraces, ThoseCommittedAreWhatDdpMakes) {
    const TemporaryFolder folder;
    const auto ended = run_ranks(torch_job({"record_traces.py", folder.path()}, 2));
    ASSERT_EQ(unless_all_exit(ended), "");
    const std::string committed = SLIMWIRE_TEST_TRACES;
    const auto names = names_in(folder.path());
    EXPECT_GE(names.size(), 9U);
    EXPECT_EQ(names, names_in(committed)) << "see record_traces.py for how to renew them";
    for (const std::string& name : names) {
        EXPECT_EQ(read_file(folder.file(name)), read_file(committed + "/" + name)) << name;
    }
}

}  // namespace
}  // namespace slimwire::test
