// The hook matrix: programs that bind NCCL in every way a program can, under every hook, and which
// of them reach slimwire. The table is printed; plugin/README.md has it too.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

enum Hook { kNone, kPreload, kDropin, kAudit, kHooks };
constexpr std::array<const char*, kHooks> kHookNames = {"no hook", "preload", "drop-in", "audit"};

struct Way {
    const char* name;
    std::vector<std::string> command;
    std::array<bool, kHooks> reached;
    std::vector<std::string> examined;  // what `slimwire doctor` is asked about; empty: nothing
    bool real_nccl = true;              // false: a stub linked in, whose results mean nothing
};

const std::string kPassedBy =
    "slimwire: warn: rank 0: NCCL is loaded, but no call of it came through LD_PRELOAD, so nothing "
    "was compressed; `slimwire run`, or LD_AUDIT=libslimwire-audit.so in place of LD_PRELOAD, "
    "reaches programs that open NCCL themselves\n";

const std::string kRealNccl = SLIMWIRE_TEST_EMULATOR "/libnccl.so.2";

std::vector<Way> ways() {
    const std::string opened = SLIMWIRE_TEST_BINDING_OPENED;
    const std::string python = SLIMWIRE_TEST_PYTHON, client = SLIMWIRE_TEST_CTYPES_CLIENT;
    // Columns: no hook, preload, drop-in, audit.
    const std::string linked = SLIMWIRE_TEST_BINDING_LINKED;
    const std::string now = SLIMWIRE_TEST_BINDING_LINKED_NOW;
    const std::string runpath = SLIMWIRE_TEST_BINDING_LINKED_RUNPATH;
    const std::string rpath = SLIMWIRE_TEST_BINDING_LINKED_RPATH;
    const std::string fixed = SLIMWIRE_TEST_BINDING_LINKED_STATIC;
    const std::string module_rpath = SLIMWIRE_TEST_BINDING_MODULE_RPATH;
    const std::string module_bare = SLIMWIRE_TEST_BINDING_MODULE_BARE;
    const std::string name = "libnccl.so.2", path = kRealNccl;
    using Commands = std::vector<std::string>;
    const Commands unseen, client_script = {python, "-B", client};
    return {
        {"linked", {linked}, {false, true, true, true}, {linked}},
        {"linked, bound at once", {now}, {false, true, true, true}, {now}},
        {"linked, RUNPATH", {runpath}, {false, true, true, true}, {runpath}},
        {"linked, RPATH", {rpath}, {false, true, false, true}, {rpath}},
        {"module with RPATH",
         {opened, "module", module_rpath},
         {false, true, false, true},
         {module_rpath}},
        {"module with NCCL linked in",
         {opened, "module", SLIMWIRE_TEST_BINDING_MODULE_OWN},
         {false, true, false, false},
         unseen},
        {"global dlopen, then a module",
         {opened, "global", name, module_bare},
         {false, true, true, true},
         unseen},
        {"dlopen by name", {opened, "local", name}, {false, false, true, true}, {opened}},
        {"dlopen by path", {opened, "local", path}, {false, false, false, true}, {opened}},
        {"deep-binding dlopen by path",
         {opened, "deep", path},
         {false, false, false, true},
         {opened}},
        {"dlmopen by name", {opened, "namespace", name}, {false, false, true, true}, unseen},
        {"ctypes by name", {python, "-B", client, name}, {false, false, true, true}, client_script},
        {"ctypes by path",
         {python, "-B", client, path},
         {false, false, false, true},
         client_script},
        {"linked statically", {fixed}, {false, false, false, false}, {fixed}, false},
    };
}

Job hooked_job(const std::vector<std::string>& command,
               Hook hook,
               const std::string& reports,
               const std::string& dropin) {
    Job job = emulated_job(command, 1);
    job.environment = {
        {"runtime.summary", "0"},       {"SLIMWIRE_CODEC", "int4:block=64"},
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
            const uint64_t calls = sum_keys(read_reports(reports.path()), "calls", compressed);
            EXPECT_TRUE(calls == 0 || calls == 2) << calls;
            const bool reached = calls != 0;
            EXPECT_EQ(reached, way.reached.at(hook));
            // A rank that the preload passed by says so; nothing else says anything.
            EXPECT_EQ(end.err, hook == kPreload && !reached && way.real_nccl ? kPassedBy : "");
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

// The same process is silent where it is no rank, not the first one, helps a rank that has NCCL
// itself, was asked for nothing, or `slimwire run` watches the job.
TEST(Hooks, OnlyTheFirstRankSaysThatThePreloadPassedItBy) {
    const std::string opened = SLIMWIRE_TEST_BINDING_OPENED;
    const std::string python = SLIMWIRE_TEST_PYTHON;
    const std::string parent = "import ctypes, subprocess; nccl = ctypes.CDLL('" + kRealNccl +
                               "'); subprocess.run(['" + opened + "'])";
    const struct {
        const char* name;
        std::vector<std::string> command;
        Environment changes;
        size_t said;
    } cases[] = {
        {"a rank", {opened}, {}, 1},
        {"a launcher's wrapper", {"/bin/sh", "-c", opened + "; true"}, {}, 1},
        {"a rank's helper", {python, "-c", parent}, {}, 1},  // the parent's line
        {"no rank", {"/usr/bin/env", "-u", "RANK", opened}, {}, 0},
        {"another rank", {opened}, {{"RANK", "1"}}, 0},
        {"no codec", {opened}, {{"SLIMWIRE_CODEC", ""}, {"SLIMWIRE_MIN_BYTES", ""}}, 0},
        {"off", {opened}, {{"SLIMWIRE_MODE", "off"}}, 0},
        {"watched", {opened}, {{"SLIMWIRE_RUN_SOCKET", "none"}}, 0},
        {"no NCCL", {"/bin/true"}, {}, 0},
    };
    for (const auto& one : cases) {
        SCOPED_TRACE(one.name);
        const TemporaryFolder reports;
        Job job = hooked_job(one.command, kPreload, reports.path(), "");
        for (const auto& [name, value] : one.changes) {
            job.environment[name] = value;
        }
        const Ended end = run_ranks(job)[0];
        EXPECT_EQ(end.exit_code, 0) << end.err;
        EXPECT_EQ(end.err, one.said == 1 ? kPassedBy : "");
    }
}

// What a job of one process said, and whether its calls were compressed.
struct Outcome {
    Ended end;
    uint64_t calls = 0;
    std::string nccl_path;
};

Outcome run_hooked(const std::vector<std::string>& command,
                   Hook hook,
                   const Environment& environment = {},
                   const std::vector<std::string>& preload = {SLIMWIRE_TEST_PRELOAD}) {
    const TemporaryFolder reports;
    Job job = hooked_job(command, hook, reports.path(), "");
    if (hook == kPreload) {
        job.preload = preload;
    }
    job.environment["SLIMWIRE_TRACE"] = reports.file("trace.%p");
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    Outcome outcome{run_ranks(job)[0], 0, ""};
    EXPECT_EQ(outcome.end.exit_code, 0) << outcome.end.out << outcome.end.err;
    const auto records = read_reports(reports.path());
    outcome.calls = sum_keys(records, "calls", compressed);
    for (const auto& record : records) {
        if (record.contains("nccl_path")) {
            outcome.nccl_path = record.at("nccl_path");
        }
    }
    return outcome;
}

const std::string kOwn = SLIMWIRE_TEST_BINDING_MODULE_OWN, kOpened = SLIMWIRE_TEST_BINDING_OPENED;

// Another libnccl.so.2 can be found all the time.
TEST(Hooks, AModuleWithAnNcclOfItsOwnKeepsIt) {
    const std::vector<std::string> module = {kOpened, "module", kOwn};
    const Outcome compressing = run_hooked(module, kPreload);
    EXPECT_EQ(compressing.calls, 2u);
    EXPECT_EQ(compressing.nccl_path, kOwn);
    EXPECT_EQ(compressing.end.err, "");
    for (const Environment& other :
         {Environment{{"SLIMWIRE_MODE", "off"}},
          Environment{{"SLIMWIRE_CODEC", ""}, {"SLIMWIRE_MIN_BYTES", ""}}}) {
        const Outcome native = run_hooked(module, kPreload, other);
        EXPECT_EQ(native.end.out + native.end.err, "max error 0\n");
    }
    // The variable names what stands for a libnccl; this is none.
    EXPECT_EQ(run_hooked(module, kPreload, {{"SLIMWIRE_NCCL_LIBRARY", kRealNccl}}).nccl_path, kOwn);
    // The loader bound it before there was another.
    EXPECT_EQ(run_hooked({kOpened, "later", kOwn, kRealNccl}, kPreload).nccl_path, kOwn);
    for (const Hook hook : {kNone, kAudit}) {
        EXPECT_EQ(run_hooked(module, hook).end.out, "max error 0\n");
    }
}

// The group of one is open while the other runs its job.
TEST(Hooks, TwoModulesWithAnNcclEach) {
    const std::string other = SLIMWIRE_TEST_BINDING_MODULE_RPATH;
    for (const auto& [first, second] : {std::pair(kOwn, other), std::pair(other, kOwn)}) {
        const std::vector<std::string> command = {kOpened, "modules", first, second};
        const Outcome native = run_hooked(command, kNone);
        EXPECT_EQ(native.end.out + native.end.err, "max error 0\nmax error 0\n");
        const Outcome hooked = run_hooked(command, kPreload);
        EXPECT_EQ(hooked.calls, 4u) << hooked.end.out;
        // The program's own code is of neither.
        EXPECT_HAS(hooked.end.err,
                   "calls NCCL, and of the several in this process nothing says "
                   "which: it gets " +
                       (first == kOwn ? kOwn : kRealNccl));
        EXPECT_EQ(hooked.end.err.find('\n'), hooked.end.err.size() - 1) << hooked.end.err;
        for (const char* mode : {"off", "record", "shadow"}) {
            const Outcome observed = run_hooked(command, kPreload, {{"SLIMWIRE_MODE", mode}});
            EXPECT_EQ(observed.end.out, native.end.out) << mode;
        }
    }
    // With one in the process, whoever calls gets that.
    const Outcome alone = run_hooked({kOpened, "modules", other, "-"}, kPreload);
    EXPECT_EQ(alone.calls, 2u);
    EXPECT_EQ(alone.end.err, "");
}

TEST(Hooks, AnInterposerOfTheUsersStaysInTheChain) {
    const std::string interposer = SLIMWIRE_TEST_BINDING_INTERPOSER, ours = SLIMWIRE_TEST_PRELOAD;
    const std::vector<std::string> linked = {SLIMWIRE_TEST_BINDING_LINKED};
    for (const auto& preload : {std::vector{ours, interposer}, std::vector{interposer, ours}}) {
        const Outcome outcome = run_hooked(linked, kPreload, {}, preload);
        EXPECT_EQ(outcome.end.out.rfind("interposed\n", 0), 0u) << outcome.end.out;
        EXPECT_EQ(outcome.calls, 2u);
        EXPECT_EQ(outcome.end.err, "");
    }
    // Opened by its path, NCCL is not behind the interposer.
    const Outcome passed =
        run_hooked(linked, kPreload, {{"SLIMWIRE_NCCL_LIBRARY", kRealNccl}}, {ours, interposer});
    EXPECT_EQ(passed.calls, 2u);
    EXPECT_HAS(passed.end.err, interposer + " stands behind slimwire and is not called");
}

#ifdef SLIMWIRE_TEST_CLI
// Where `slimwire doctor` says yes the hook reaches, where it says no it does not; what depends on
// the name by which a program opens NCCL it says as much of.
TEST(Hooks, DoctorSaysTheSame) {
    int by_name = 0;
    for (const Way& way : ways()) {
        if (way.examined.empty()) {
            continue;
        }
        SCOPED_TRACE(way.name);
        std::vector<std::string> command = {SLIMWIRE_TEST_CLI, "doctor", "--json", "--"};
        command.insert(command.end(), way.examined.begin(), way.examined.end());
        const Ended end = run_ranks(emulated_job(command, 1))[0];
        const auto json = nlohmann::json::parse(end.out, nullptr, false);
        ASSERT_FALSE(json.is_discarded()) << end.out << end.err;
        const char* const names[] = {"", "preload", "dropin", "audit"};
        for (int hook = kPreload; hook < kHooks; ++hook) {
            const std::string said = json.at("hooks").at(names[hook]);
            by_name += said == "by name" ? 1 : 0;
            if (said != "by name") {
                EXPECT_EQ(said, way.reached.at(hook) ? "yes" : "no") << names[hook];
            }
        }
        EXPECT_EQ(json.at("binding").get<std::string>().empty(), false);
    }
    EXPECT_EQ(by_name, 5);  // one for each way of opening
}

// How a job ended that `slimwire run` started with these options, and whether slimwire got in.
struct CliRun {
    Ended end;
    bool reached = false;
};

CliRun run_by_cli(const std::vector<std::string>& options,
                  const std::vector<std::string>& program,
                  const Environment& environment = {}) {
    const TemporaryFolder reports, cache;
    Job job = hooked_job({SLIMWIRE_TEST_CLI, "run"}, kNone, reports.path(), "");
    job.environment["XDG_CACHE_HOME"] = cache.path();
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    job.command.insert(job.command.end(), options.begin(), options.end());
    job.command.emplace_back("--");
    job.command.insert(job.command.end(), program.begin(), program.end());
    CliRun run{.end = run_ranks(job)[0]};
    EXPECT_EQ(run.end.exit_code, 0) << run.end.out << run.end.err;
    run.reached = sum_keys(read_reports(reports.path()), "calls", compressed) > 0;
    return run;
}

#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
constexpr bool kAuditWorks = false;
#else
constexpr bool kAuditWorks = true;
#endif
const std::vector<std::string> kByName = {SLIMWIRE_TEST_BINDING_OPENED};
const std::vector<std::string> kByPath = {SLIMWIRE_TEST_BINDING_OPENED, "local", kRealNccl};

TEST(Hooks, RunTakesTheHookThatReachesEverything) {
    const std::string python = SLIMWIRE_TEST_PYTHON, client = SLIMWIRE_TEST_CTYPES_CLIENT;
    const std::string by_path = kByPath[0] + " local " + kRealNccl;
    const TemporaryFolder folder;
    const std::string script = folder.file("job");
    std::ofstream(script) << "#!/bin/sh\nexec " + kByName[0] + "\n";
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    const std::vector<std::string> commands[] = {
        {script},
        kByName,
        kByPath,
        {python, "-B", client, "libnccl.so.2"},
        {python, "-B", client, kRealNccl},
        {"/bin/sh", "-c", "env TEST=1 " + by_path + "; exit $?"},
    };
    for (const std::vector<std::string>& command : commands) {
        SCOPED_TRACE(testing::PrintToString(command));
        const CliRun run = run_by_cli({}, command);
        EXPECT_EQ(run.reached, kAuditWorks);
        EXPECT_EQ(run.end.err.empty(), kAuditWorks) << run.end.err;
    }
    EXPECT_TRUE(run_by_cli({"--dropin"}, {script}).reached);
    EXPECT_TRUE(run_by_cli({}, {SLIMWIRE_TEST_BINDING_LINKED}).reached);
    EXPECT_TRUE(run_by_cli({"--emulate", "2"}, {SLIMWIRE_TEST_REDUCE}).reached);
    EXPECT_EQ(run_by_cli({"--emulate", "2", "--nodes", "1x2"}, kByPath).reached, kAuditWorks);
}

// Once a job, with the hook, its reason and what to do; never where slimwire was reached.
TEST(Hooks, RunSaysThatNothingWasReached) {
    const std::string said = "so slimwire did nothing (hook ";
    const std::string taken = "LD_AUDIT holds " + kRealNccl + ".none already";
    const auto count = [&](const CliRun& run) {
        size_t lines = 0;
        for (size_t at = 0; (at = run.end.err.find(said, at)) != std::string::npos; ++at) {
            ++lines;
        }
        return lines;
    };
    CliRun run = run_by_cli({}, kByPath, {{"LD_AUDIT", kRealNccl + ".none"}});
    EXPECT_FALSE(run.reached);
    EXPECT_EQ(count(run), 1u) << run.end.err;
    EXPECT_HAS(run.end.err,
               "slimwire: warn: no process of " + kByPath[0] + " called NCCL through slimwire on ");
    EXPECT_HAS(run.end.err, said + "preload: " + taken);
    EXPECT_HAS(run.end.err,
               "; --hook audit reaches programs that open NCCL themselves, too; "
               "`slimwire doctor -- " +
                   kByPath[0] + "` says");

    const std::vector<std::string> shell = {"/bin/sh", "-c", "true & true; wait"};
    EXPECT_EQ(count(run_by_cli({}, shell)), 1u);
    EXPECT_EQ(count(run_by_cli({"--hook", "preload"}, kByName)), 1u);
    EXPECT_EQ(count(run_by_cli({"--emulate", "2", "--hook", "preload"}, {"true"})), 1u);
    EXPECT_EQ(count(run_by_cli({"--mode", "record"}, {"true"})), 1u);
    // Two runs in one are one job; a name that nobody listens to is none.
    EXPECT_EQ(count(run_by_cli({}, {SLIMWIRE_TEST_CLI, "run", "--", "true"})), 1u);
    EXPECT_EQ(count(run_by_cli({}, {"true"}, {{"SLIMWIRE_RUN_SOCKET", "none"}})), 1u);
    EXPECT_EQ(count(run_by_cli({}, {SLIMWIRE_TEST_CLI, "run", "--", SLIMWIRE_TEST_BINDING_LINKED})),
              0u);
    EXPECT_EQ(count(run_by_cli({}, {"true"}, {{"RANK", "1"}})), 0u);
    EXPECT_EQ(count(run_by_cli({"--log", "error"}, {"true"})), 0u);
    EXPECT_EQ(count(run_by_cli({"--mode", "off"}, {"true"})), 0u);
    EXPECT_EQ(count(run_by_cli({"--native"}, {"true"})), 0u);
    EXPECT_EQ(count(run_by_cli({}, {"true"}, {{"SLIMWIRE_CODEC", "native"}})), 0u);
}

TEST(Hooks, RunTakesTheNamedHook) {
    const std::vector<std::string> linked = {SLIMWIRE_TEST_BINDING_LINKED};
    EXPECT_TRUE(run_by_cli({"--dropin"}, kByName).reached);
    const struct {
        const char* hook;
        bool linked, by_name, by_path;
    } rows[] = {{"preload", true, false, false},
                {"dropin", true, true, false},
                {"audit", true, true, true}};
    for (const auto& row : rows) {
        SCOPED_TRACE(row.hook);
        EXPECT_EQ(run_by_cli({"--hook", row.hook}, linked).reached, row.linked);
        EXPECT_EQ(run_by_cli({"--hook", row.hook}, kByName).reached, row.by_name);
        EXPECT_EQ(run_by_cli({"--hook", row.hook}, kByPath).reached, row.by_path);
        EXPECT_TRUE(
            run_by_cli({"--emulate", "2", "--hook", row.hook}, {SLIMWIRE_TEST_REDUCE}).reached);
    }
}
#endif

}  // namespace
}  // namespace slimwire::test
