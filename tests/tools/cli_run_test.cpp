// `slimwire run` for one process: what is checked before anything starts, what the command finds in
// its environment, and that it is the command's own process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <tuple>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

// One line that says what is wrong, before anything starts.
TEST(Run, ErrorsComeBeforeTheCommand) {
    const ScratchFolder folder;
    const std::string policy =
        folder.write("p.toml", "version = 1\n[[rule]]\nname = \"grads\"\ncodek = \"int4\"\n");
    const std::string mark = folder.file("started");
    std::string foreign = read_file(SLIMWIRE_LIBRARY_PATH);
    ASSERT_GT(foreign.size(), 64u);
    foreign.replace(18, 2, "\xf3\0", 2);  // e_machine: RISC-V
    const std::string library = folder.write("libslimwire.so", foreign);
    using Words = std::vector<std::string>;
    const std::tuple<int, Words, Words> kWrong[] = {
        {125, {"--policy", policy}, {"p.toml:4:", "codek"}},
        {125, {"--codec", "int5", "--ef", "ef14"}, {"int5"}},
        {125, {"--codec", "int4:block=0"}, {"int4:block=0"}},
        {125, {"--codec", "int4:blok=64"}, {"blok"}},
        {125,
         {"--codec", "int4", "--calibration", "no-such.jsonl"},
         {"SLIMWIRE_CALIBRATION: ", "no-such.jsonl cannot be read or is empty"}},
        {125, {"--report", "/no/such/folder/r-%r"}, {"/no/such/folder"}},
        {125, {"--report", "/proc/r-%r"}, {"cannot write into /proc"}},  // whoever we are
        {125, {"--library", library}, {"riscv"}},
        {125, {"--library", "/no/libslimwire.so"}, {"/no/libslimwire.so"}},
        {125, {"--native", "--hook", "audit"}, {"leave out --hook and --dropin"}},
        {125, {"--native", "--codec", "int4"}, {"leave out --codec"}},
        {125, {"--native", "--report", "r.%r"}, {"leave out --report"}},
        {125, {"--native", "--mode", "record"}, {"leave out --mode"}},
        {125, {"--native", "--min-bytes", "1KiB"}, {"leave out --min-bytes"}},
        {2, {"--hook", "ptrace"}, {"--hook 'ptrace': accepted: auto, preload, dropin, audit"}},
        {2, {"--hook", "audit", "--dropin"}, {"--hook"}},
        {2, {"--codek", "int4"}, {"--codek"}},
        {2, {"--emulate", "0"}, {"--emulate"}},
        {2, {"--emulate", "two"}, {"--emulate"}},
        {2, {"--grace", "nan"}, {"--grace"}},
        {2, {"--codec", "int4", "--policy", "p.toml"}, {"--codec"}},
    };
    for (const auto& [exit_code, options, parts] : kWrong) {
        expect_says(exit_code, with(with({"run"}, options), {"--", "touch", mark}), parts);
    }
    expect_says(125, {"run", "--", "touch", mark}, {"SLIMWIRE_CODECC"},
                {{"SLIMWIRE_CODECC", "int4"}});
    for (const Words& words : {Words{"run"}, {"run", "--"}, {"run", "true"}, {"walk"}, {}}) {
        expect_says(2, words, {});
    }
    EXPECT_FALSE(std::filesystem::exists(mark));
}

// The loader would split the path, or replace a part of it, and find nothing: the command would run
// natively.
TEST(Run, DropinInAFolderThatTheLoaderSplits) {
    const ScratchFolder folder;
    const std::string nccl = folder.write("libnccl.so.2", "");
    for (const auto& [name, why] :
         {std::pair("a:b", "the loader splits LD_LIBRARY_PATH at ':'"),
          {"a;b", "the loader splits LD_LIBRARY_PATH at ';'"},
          {"a$LIB", "the loader replaces $LIB in LD_LIBRARY_PATH"},
          {"a${ORIGIN}", "the loader replaces ${ORIGIN} in LD_LIBRARY_PATH"}}) {
        expect_says(125, {"run", "--hook", "dropin", "--codec", "int8", "--", "true"}, {why},
                    {{"XDG_CACHE_HOME", folder.file(name)}, {"SLIMWIRE_NCCL_LIBRARY", nccl}});
    }
}

TEST(Run, EnvironmentOfTheCommand) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP()
        << "built with a sanitizer: slimwire itself then cannot start below LD_PRELOAD=libm.so.6";
#endif
    const ScratchFolder folder;
    folder.write("p.toml", "version = 1\n");
    Program program(
        with({"sh", "-c", "cd \"$0\" && exec \"$@\"", folder.path()},
             slimwire_command({"run", "--hook", "preload", "--policy", "p.toml", "--report",
                               "r-%r.jsonl", "--log", "info", "--", "env"})),
        {{"LD_PRELOAD", "libm.so.6"}, {"SLIMWIRE_CODEC", "int8"}, {"LD_LIBRARY_PATH", "/nowhere"}});
    const Ended ended = program.wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    // Ours first, what was there kept.
    EXPECT_HAS(ended.out, std::string("LD_PRELOAD=") + SLIMWIRE_LIBRARY_PATH);
    EXPECT_HAS(ended.out, ":libm.so.6\n");
    EXPECT_HAS(ended.out, "LD_LIBRARY_PATH=/nowhere\n");
    // Paths survive a change of folder in the command.
    EXPECT_HAS(ended.out, "SLIMWIRE_POLICY=" + folder.path().string() + "/p.toml\n");
    EXPECT_HAS(ended.out, "SLIMWIRE_REPORT=" + folder.path().string() + "/r-%r.jsonl\n");
    EXPECT_HAS(ended.out, "SLIMWIRE_LOG=info\n");
    // The command line wins over the environment.
    EXPECT_HAS_NOT(ended.out, "SLIMWIRE_CODEC=");
}

TEST(Run, PreloadIsNotRepeated) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP()
        << "built with a sanitizer: slimwire itself then cannot start below LD_PRELOAD=libm.so.6";
#endif
    const std::string library = SLIMWIRE_LIBRARY_PATH;
    const Ended ended = run_slimwire({"run", "--", "sh", "-c", "echo \"$LD_PRELOAD\""},
                                     {{"LD_PRELOAD", "libm.so.6 " + library}});
    EXPECT_EQ(ended.out, library + ":libm.so.6\n") << ended.err;
}

TEST(Run, HooksSetTheirVariables) {
    const std::string library = SLIMWIRE_LIBRARY_PATH;
    const std::string folder = std::filesystem::path(library).parent_path().string();
    const auto variables = [](const std::vector<std::string>& options,
                              const std::map<std::string, std::string>& environment) {
        // Without a sanitizer's runtime before them.
        const std::string script =
            "preload=$(printf %s \"$LD_PRELOAD\" | sed 's|[^:]*san[.]so[^:]*:||g'); "
            "echo \"[$LD_AUDIT][$preload][$GLIBC_TUNABLES]\"";
        return succeed(with(with({"run"}, options), {"--", "sh", "-c", script}), environment).out;
    };
    const std::map<std::string, std::string> none{{"GLIBC_TUNABLES", ""}, {"LD_PRELOAD", ""}};
    EXPECT_EQ(variables({"--hook", "preload"}, none), "[][" + library + "][]\n");
    const std::string audit = folder + "/libslimwire-audit.so";
    const std::string room = "glibc.rtld.optional_static_tls=";
    EXPECT_HAS(variables({"--hook", "audit"}, none), "[" + audit + "][");
    EXPECT_HAS(variables({"--hook", "audit"}, none), "[" + room + "16384]\n");
    // What was there is kept.
    EXPECT_HAS(variables({"--hook", "audit"}, {{"GLIBC_TUNABLES", "glibc.malloc.check=0"}}),
               "[glibc.malloc.check=0:" + room + "16384]\n");
    EXPECT_HAS(variables({"--hook", "audit"}, {{"GLIBC_TUNABLES", room + "512"}}),
               "[" + room + "512]\n");
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool kAuditWorks = false;
#else
constexpr bool kAuditWorks = true;
#endif

TEST(Run, AutoTakesAuditUnlessSomethingForbidsIt) {
    const std::string library = SLIMWIRE_LIBRARY_PATH;
    const std::string audit =
        (std::filesystem::path(library).parent_path() / "libslimwire-audit.so").string();
    const std::string usual = kAuditWorks
                                  ? "audit: it reaches every program that loads NCCL"
                                  : "preload: slimwire is built with a sanitizer (libasan.so";
    const struct {
        std::vector<std::string> options;
        std::map<std::string, std::string> environment;
        std::string said;
    } cases[] = {
        {{}, {}, usual},
        {{"--hook", "auto"}, {}, usual},
        {{}, {{"LD_AUDIT", audit}}, usual},
        {{}, {{"TMPDIR", "/proc"}}, usual},  // where nobody makes a file
        {{}, {{"LD_AUDIT", "/no/other.so"}}, "preload: LD_AUDIT holds /no/other.so already"},
        {{},
         {{"SLIMWIRE_NCCL_LIBRARY", "/no/libnccl.so.2"}},
         kAuditWorks ? "preload: SLIMWIRE_NCCL_LIBRARY: /no/libnccl.so.2 is not there" : usual},
        {{}, {{"LD_PRELOAD", library}}, "preload: LD_PRELOAD holds " + library + " already"},
        {{"--library", library}, {}, "preload: --library names " + library},
        {{"--hook", "preload"}, {}, "preload: as --hook says"},
    };
    for (const auto& one : cases) {
        if (!kAuditWorks && one.environment.contains("LD_PRELOAD")) {
            continue;  // slimwire itself would not start
        }
        const Ended ended = succeed(with(with({"run", "--log", "info"}, one.options),
                                         {"--", "sh", "-c", "echo \"[$LD_AUDIT][$LD_PRELOAD]\""}),
                                    one.environment);
        EXPECT_HAS(ended.err, "slimwire: info: hook " + one.said);
        const bool audited = one.said.starts_with("audit");
        if (!one.environment.contains("LD_AUDIT")) {
            EXPECT_EQ(ended.out.starts_with('[' + audit + ']'), audited) << ended.out;
        }
        EXPECT_EQ(ended.out.find(library) == std::string::npos, audited) << ended.out;
    }
    if (kAuditWorks) {
        EXPECT_HAS(run_slimwire({"run", "--", "sh", "-c", "echo \"[$LD_PRELOAD]\""},
                                {{"LD_PRELOAD", "libm.so.6"}})
                       .out,
                   "[libm.so.6]\n");
    }
}

// What the loader of a program that is built with a sanitizer does not tell the audit helper.
TEST(Run, AutoPreloadsIntoASanitizedProgram) {
    const ScratchFolder folder;
    const std::string source = folder.write("p.c", "int main(void) { return 0; }\n");
    const std::string program = folder.path().string() + "/p";
    ASSERT_EQ(Program({"cc", "-fsanitize=address", "-o", program, source}).wait(60).exit_code, 0);
    expect_says(0, {"run", "--log", "info", "--", program},
                {"slimwire: info: hook preload: ", "built with a sanitizer (libasan.so"},
                {{"ASAN_OPTIONS", "verify_asan_link_order=0"}});
}

TEST(Run, ProgramsThatGainRightsAreNamed) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "only root makes a program that another user owns";
    }
    const ScratchFolder folder;
    const std::string program = folder.path().string() + "/true";
    std::filesystem::copy_file("/bin/true", program);
    ASSERT_EQ(::chown(program.c_str(), 65534, 65534), 0);
    ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
    EXPECT_HAS(run_slimwire({"run", "--", program}).err,
               "slimwire: " + program + " has its owner's rights");
}

// Libraries with more static thread-local data than the loader keeps free under LD_AUDIT.
TEST(Run, AuditLeavesRoomForStaticThreadLocalData) {
    const ScratchFolder folder;
    folder.write("t.c",
                 "__attribute__((tls_model(\"initial-exec\"))) __thread char big[SIZE];\n"
                 "int touch(void) { big[1] = 0; return big[1]; }\n");
    folder.write("m.c",
                 "#include <stdlib.h>\nint touch(void);\n"
                 "int main(void) { return touch() + (getenv(\"LD_AUDIT\") == NULL ? 3 : 0); }\n");
    for (const std::string size : {"8000", "60000"}) {
        build_in(folder, "cc -shared -fPIC -DSIZE=" + size + " -o libt" + size +
                             ".so t.c\ncc -o p" + size + " m.c -Wl,-rpath,'$ORIGIN' libt" + size +
                             ".so\n");
        const std::string program = folder.file("p" + size);
        const std::map<std::string, std::string> little{
            {"GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=512"}};
        EXPECT_EQ(run_slimwire({"run", "--hook", "audit", "--", program}).exit_code, 0);
        EXPECT_EQ(run_slimwire({"run", "--hook", "audit", "--", program}, little).exit_code, 0);
        EXPECT_EQ(run_slimwire({"run", "--", "env", "A=1", program}).exit_code,
                  kAuditWorks ? 0 : 3);
    }
}

TEST(Run, NativeLeavesSlimwireOut) {
    const Ended ended = run_slimwire(
        {"run", "--native", "--", "sh", "-c", "echo \"[$LD_PRELOAD]\""}, {{"LD_PRELOAD", ""}});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out, "[]\n");
}

// Programs change their folder before they make a communicator; a folder's own % is none of %r.
TEST(Run, RelativePathsAreOfTheFolderThatItIsStartedIn) {
    const ScratchFolder scratch;
    (void)scratch.write("p.toml", "version = 1\n");
    const std::string parent = scratch.path().string(), folder = parent + "/90%h";
    std::filesystem::create_directory(folder);
    const auto there = [&folder](const std::vector<std::string>& options,
                                 const std::map<std::string, std::string>& environment,
                                 const std::string& script) {
        return Program(
                   with({"sh", "-c", "cd \"$0\" && exec \"$@\"", folder},
                        slimwire_command(with(with({"run"}, options), {"--", "sh", "-c", script}))),
                   environment)
            .wait()
            .out;
    };
    EXPECT_EQ(there({"--report", "r.%r"},
                    {{"SLIMWIRE_POLICY", "../p.toml"},
                     {"SLIMWIRE_STATE", "s,every=3"},
                     {"SLIMWIRE_TRACE", "/t.%p"},
                     {"SLIMWIRE_NCCL_LIBRARY", "libnccl.so.2"}},
                    "cd /; echo $SLIMWIRE_POLICY $SLIMWIRE_STATE $SLIMWIRE_REPORT $SLIMWIRE_TRACE "
                    "$SLIMWIRE_NCCL_LIBRARY"),
              folder + "/../p.toml " + folder + "/s,every=3 " + parent +
                  "/90%%h/r.%r /t.%p libnccl.so.2\n");
    // Where mode record writes when nothing is said.
    EXPECT_EQ(there({"--mode", "record"}, {}, "echo $SLIMWIRE_TRACE"),
              parent + "/90%%h/slimwire-trace.%h.%p.jsonl\n");
}

TEST(Run, CommandKeepsItsOptionsAndArguments) {
    const Ended ended = run_slimwire(
        {"run", "--codec", "int4", "--", "printf", "%s|", "--codec", "", "a b", "--", "--help"});
    EXPECT_EQ(ended.out, "--codec||a b|--|--help|") << ended.err;
}

TEST(Run, IsTheCommandsOwnProcess) {
    Program program(slimwire_command({"run", "--", "sh", "-c", "echo $$; exec sleep 100"}));
    ASSERT_TRUE(program.wait_for_out("\n"));
    program.send(SIGUSR1);
    const pid_t pid = program.pid();
    const Ended ended = program.wait();
    EXPECT_EQ(ended.out, std::to_string(pid) + "\n");
    EXPECT_EQ(ended.signal, SIGUSR1);
}

TEST(Run, ExitCodes) {
    const ScratchFolder folder;
    const std::string plain = folder.write("not-executable", "#!/bin/sh\n");
    EXPECT_EQ(run_slimwire({"run", "--", "sh", "-c", "exit 7"}).exit_code, 7);
    EXPECT_EQ(run_slimwire({"run", "--", "no-such-command-here"}).exit_code, 127);
    EXPECT_EQ(run_slimwire({"run", "--", plain}).exit_code, 126);
    expect_one_error_line(run_slimwire({"run", "--", "no-such-command-here"}));
}

TEST(Run, MissingNcclIsToldBeforeTheLoaderFails) {
    const ScratchFolder folder;
    // A program that needs a libnccl.so.2 which is then taken away.
    build_in(folder,
             "cc -shared -fPIC -Wl,-soname,libnccl.so.77 -o libnccl.so.77 n.c\n"
             "cc -o p p.c ./libnccl.so.77\nrm libnccl.so.77\n");
    const Ended ended = run_slimwire({"run", "--", folder.file("p")});
    EXPECT_EQ(ended.exit_code, 127);  // the loader's own code
    EXPECT_HAS(ended.err,
               "slimwire: " + folder.file("p") + " needs libnccl.so.77, which is not found");
    EXPECT_HAS(ended.err, "LD_LIBRARY_PATH");
}

TEST(Run, HelpListsOptionsVariablesAndExitCodes) {
    expect_prints({"run", "--help"},
                  {"--emulate", "--link", "SLIMWIRE_CODEC", "SLIMWIRE_EMU_LINK", "127"});
    for (const std::string command : {"policy", "doctor", "report", "bench", "run"}) {
        expect_prints({command, "--help"}, {"Usage: slimwire " + command});
    }
    EXPECT_EQ(run_slimwire({"--version"}).out.rfind("slimwire ", 0), 0u);
}

TEST(Policy, CheckSaysWhichFeedbackGrows) {
    const ScratchFolder folder;
    constexpr char kGrows[] = "loses more of what it encodes than there is";
    for (const auto& [codec, feedback, grows] : {std::tuple("ternary", "ef14", true),
                                                 {"qsgd:levels=1", "ef21", true},
                                                 {"ternary", "none", false},
                                                 {"qsgd:levels=7", "ef14", false},
                                                 {"int2", "ef14", false},
                                                 {"powersgd:rank=4", "ef14", false}}) {
        const Ended ended = run_slimwire(
            {"policy", "check",
             folder.write("p.toml", std::string("version = 1\n[[rule]]\nname = \"r\"\ncodec = \"") +
                                        codec + "\"\nef = \"" + feedback + "\"\n")});
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
        EXPECT_EQ(ended.out.find(kGrows) != std::string::npos, grows) << codec << ended.out;
    }
}

TEST(Policy, CheckPrintsRulesAsUnderstood) {
    const ScratchFolder folder;
    const std::string good = folder.write("good.toml",
                                          "version = 1\n[[rule]]\nname = \"grads\"\n"
                                          "match = { op = \"all_reduce\", dtype = \"f32\" }\n"
                                          "codec = \"int4:block=64\"\nerror_feedback = \"ef14\"\n");
    expect_prints({"policy", "check", good},
                  {"1 rule, hash ", "grads: op allreduce; dtype f32", "int4", "ef14"});
    expect_prints({"policy", "check", "--json", good}, {"\"ok\":true", "\"op\":[\"allreduce\"]"});
    const std::string many = folder.write(
        "many.toml",
        "version = 1\n[[rule]]\nname = \"grads\"\ncodec = \"topk:fraction=0.01\"\nef = \"ef14\"\n"
        "ramp = [{ until = 9, codec = \"native\" }]\n[[rule]]\nname = \"b\"\n"
        "match = { op = \"allreduce\" }\ncodec = \"powersgd:rank=1\"\n"
        "accordion = { low = \"powersgd:rank=2\", window = 50 }\n[[rule]]\nname = \"c\"\n"
        "match = { op = \"reducescatter\" }\ncodec = \"topk:fraction=0.01\"\nef = \"ef14\"\n"
        "average_every = 20\naverage_codec = \"int8\"\n"
        "step_ahead = { gain = 1.5, step_size = 0.1 }\n");
    expect_prints({"policy", "check", many},
                  {"ramp { until 9, codec native }",
                   "accordion { low powersgd:rank=2, window 50, ratio 0.5, hysteresis 2, lr_drops ",
                   "average_every 20, average_codec int8", "step_ahead { gain 1.5, step_size 0.1 }",
                   "not under Adam"});
    expect_prints({"policy", "check", "--json", many},
                  {"\"step_ahead\":{\"gain\":1.5,\"step_size\":0.1}",
                   "\"ramp\":[{\"until\":9,\"codec\":\"native\"}]",
                   "\"accordion\":{\"low\":\"powersgd:rank=2\",\"window\":50,",
                   "\"average_every\":20,\"average_codec\":\"int8\""});
    // What is known of gradients is not said of activations.
    const std::string sequence = folder.write(
        "sequence.toml",
        "version = 1\n[[rule]]\nname = \"s\"\nmatch = { op = [\"allgather\", "
        "\"reducescatter\"] }\nforward_calls = 2\ncodec = \"topk:fraction=0.05,pair=mask\"\n");
    EXPECT_HAS_NOT(succeed({"policy", "check", sequence}).out, "Adam");
    // A file that is wrong does not hide the others.
    const std::string bad = folder.write("bad.toml", "version = 1\n[[rule]]\nname = 3\n");
    const Ended ended = run_slimwire({"policy", "check", bad, good});
    EXPECT_EQ(ended.exit_code, 1);
    expect_one_error_line(ended);
    EXPECT_HAS(ended.err, "bad.toml:3:");
    EXPECT_HAS(ended.out, "good.toml: 1 rule");
    expect_says(1, {"policy", "check", "/no/such/file.toml"}, {});
    const std::string none = folder.write("none.toml", "version = 1\n");
    expect_prints({"policy", "check", none}, {"note: no rule compresses: all calls stay native"});
    expect_says(0, {"run", "--policy", none, "--", "true"},
                {"policy " + none + ": no rule compresses: all calls stay native"});
    const std::string defaults =
        folder.write("d.toml", "version = 1\n[defaults]\ncodec = \"int8\"\n");
    expect_says(0, {"run", "--policy", defaults, "--", "true"},
                {"[defaults] are of rules, and there is none: nothing is compressed"});
}

TEST(Policy, EnvShowsWhereValuesComeFrom) {
    expect_prints({"policy", "env", "--json"},
                  {"{\"name\":\"SLIMWIRE_CODEC\",\"value\":\"int8\",\"source\":\"environment\"}",
                   "\"active\":true"},
                  {{"SLIMWIRE_CODEC", "int8"}});
    const Ended ended = run_slimwire({"policy", "env"}, {{"SLIMWIRE_CODEC", "int9"}});
    EXPECT_EQ(ended.exit_code, 1);
    expect_one_error_line(ended);
}

}  // namespace
}  // namespace slimwire::cli::test
