// The hook matrix: programs that bind NCCL in every way a program can, under every hook, and which
// of them reach slimwire. The table is printed; plugin/README.md has it too.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

enum Hook { kNone, kPreload, kDropin, kAudit, kDlsym, kHooks };
constexpr std::array<const char*, kHooks> kHookNames = {"no hook", "preload", "drop-in", "audit",
                                                        "preload + dlsym"};

struct Way {
    const char* name;
    std::vector<std::string> command;
    std::array<bool, kHooks> reached;
    bool real_nccl = true;  // false: a stub linked in, whose results mean nothing
};

const std::string kRealNccl = SLIMWIRE_TEST_EMULATOR "/libnccl.so.2";

std::vector<Way> ways() {
    const std::string opened = SLIMWIRE_TEST_BINDING_OPENED;
    const std::string python = SLIMWIRE_TEST_PYTHON, client = SLIMWIRE_TEST_CTYPES_CLIENT;
    // Columns: no hook, preload, drop-in, audit, preload + dlsym.
    return {
        {"linked", {SLIMWIRE_TEST_BINDING_LINKED}, {false, true, true, true, true}},
        {"linked, bound at once",
         {SLIMWIRE_TEST_BINDING_LINKED_NOW},
         {false, true, true, true, true}},
        {"linked, RUNPATH",
         {SLIMWIRE_TEST_BINDING_LINKED_RUNPATH},
         {false, true, true, true, true}},
        {"linked, RPATH", {SLIMWIRE_TEST_BINDING_LINKED_RPATH}, {false, true, false, true, true}},
        {"module with RPATH",
         {opened, "module", SLIMWIRE_TEST_BINDING_MODULE_RPATH},
         {false, true, false, true, true}},
        {"global dlopen, then a module",
         {opened, "global", "libnccl.so.2", SLIMWIRE_TEST_BINDING_MODULE_BARE},
         {false, true, true, true, true}},
        {"dlopen by name", {opened, "local", "libnccl.so.2"}, {false, false, true, true, true}},
        {"dlopen by path", {opened, "local", kRealNccl}, {false, false, false, true, true}},
        {"deep-binding dlopen by path",
         {opened, "deep", kRealNccl},
         {false, false, false, true, true}},
        {"dlmopen by name",
         {opened, "namespace", "libnccl.so.2"},
         {false, false, true, true, false}},
        {"ctypes by name",
         {python, "-B", client, "libnccl.so.2"},
         {false, false, true, true, true}},
        {"ctypes by path", {python, "-B", client, kRealNccl}, {false, false, false, true, true}},
        {"linked statically",
         {SLIMWIRE_TEST_BINDING_LINKED_STATIC},
         {false, false, false, false, false},
         false},
    };
}

Job hooked_job(const std::vector<std::string>& command,
               Hook hook,
               const std::string& reports,
               const std::string& dropin) {
    Job job = emulated_job(command, 1);
    job.environment = {
        {"SLIMWIRE_SUMMARY", "0"},      {"SLIMWIRE_CODEC", "int4:block=64"},
        {"SLIMWIRE_MIN_BYTES", "4KiB"}, {"SLIMWIRE_EMU_DEVICES", "2"},
        {"SLIMWIRE_EMU_NODES", "2x1"},  {"SLIMWIRE_REPORT", reports + "/report.%p"},
    };
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    job.environment["LD_PRELOAD"] = SLIMWIRE_TEST_SANITIZER_RUNTIME;
#endif
    const auto preload = [&](std::vector<std::string> libraries) {
        job.environment.erase("LD_PRELOAD");
        job.preload = std::move(libraries);
    };
    switch (hook) {
        case kNone:
            break;
        case kPreload:
            preload({SLIMWIRE_TEST_PRELOAD});
            break;
        case kDropin:
            job.library_path.insert(job.library_path.begin(), dropin);
            break;
        case kAudit:
            job.environment["LD_AUDIT"] = SLIMWIRE_TEST_AUDIT;
            break;
        case kDlsym:
            preload({SLIMWIRE_TEST_DLSYM, SLIMWIRE_TEST_PRELOAD});
            break;
        case kHooks:
            break;
    }
    return job;
}

TEST(Hooks, EveryWayOfBindingUnderEveryHook) {
    const TemporaryFolder dropin;
    make_dropin(dropin.path(), kRealNccl);
    std::string table = "what reaches slimwire           ";
    for (const char* name : kHookNames) {
        table += std::string("| ") + name + " ";
    }
    for (const Way& way : ways()) {
        table += '\n' + std::string(way.name) + std::string(32 - std::strlen(way.name), ' ');
        for (int hook = kNone; hook < kHooks; ++hook) {
            SCOPED_TRACE(std::string(way.name) + " under " + kHookNames.at(hook));
            const TemporaryFolder reports;
            const Ended end = run_ranks(
                hooked_job(way.command, static_cast<Hook>(hook), reports.path(), dropin.path()))[0];
            ASSERT_EQ(end.exit_code, 0) << end.out << end.err;
            EXPECT_EQ(end.err, "");
            const uint64_t calls = sum_keys(read_reports(reports.path()), "calls", compressed);
            EXPECT_TRUE(calls == 0 || calls == 2) << calls;
            const bool reached = calls != 0;
            EXPECT_EQ(reached, way.reached.at(hook));
            // int4 cannot carry these values exactly; NCCL does.
            if (way.real_nccl) {
                EXPECT_EQ(end.out == "max error 0\n", !reached) << end.out;
            }
            table += std::string("| ") + (reached ? "yes" : "-") +
                     std::string(std::strlen(kHookNames.at(hook)) - (reached ? 2 : 0), ' ');
        }
    }
    std::printf("%s\n", table.c_str());
}

}  // namespace
}  // namespace slimwire::test
