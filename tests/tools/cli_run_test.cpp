// `slimwire run` for one process: what is checked before anything starts, what the command finds in
// its environment, and that it is the command's own process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

TEST(Run, PolicyErrorBeforeAnythingStarts) {
    const ScratchFolder folder;
    const std::string policy =
        folder.write("p.toml", "version = 1\n[[rule]]\nname = \"grads\"\ncodek = \"int4\"\n");
    const std::string mark = (folder.path() / "started").string();
    expect_says(125, {"run", "--policy", policy, "--", "touch", mark}, {"p.toml:4:", "codek"});
    EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(Run, CodecErrorBeforeAnythingStarts) {
    const ScratchFolder folder;
    const std::string mark = (folder.path() / "started").string();
    for (const char* codec : {"int5", "int4:block=0", "int4:blok=64"}) {
        const Ended ended =
            run_slimwire({"run", "--codec", codec, "--ef", "ef14", "--", "touch", mark});
        EXPECT_EQ(ended.exit_code, 125) << codec;
        expect_one_error_line(ended);
    }
    EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(Run, APolicyOfDefaultsAloneIsAWarning) {
    const ScratchFolder folder;
    const std::string policy =
        folder.write("p.toml", "version = 1\n[defaults]\ncodec = \"int8\"\n");
    expect_says(0, {"run", "--policy", policy, "--", "true"},
                {"[defaults] are of rules, and there is none: nothing is compressed"});
}

TEST(Run, CalibrationErrorBeforeAnythingStarts) {
    expect_says(125, {"run", "--codec", "int4", "--calibration", "no-such.jsonl", "--", "true"},
                {"SLIMWIRE_CALIBRATION: ", "no-such.jsonl cannot be read or is empty"});
}

// The loader would split the path, or replace a part of it, and find nothing: the command would run
// natively.
TEST(Run, DropinInAFolderThatTheLoaderSplits) {
    const ScratchFolder folder;
    const std::string nccl = folder.write("libnccl.so.2", "");
    for (const char* name : {"a:b", "a;b"}) {
        expect_says(
            125, {"run", "--hook", "dropin", "--codec", "int8", "--", "true"},
            {std::string("the loader splits LD_LIBRARY_PATH at '") + name[1] + "'"},
            {{"XDG_CACHE_HOME", (folder.path() / name).string()}, {"SLIMWIRE_NCCL_LIBRARY", nccl}});
    }
    for (const std::string token : {"$LIB", "${ORIGIN}"}) {
        expect_says(125, {"run", "--hook", "dropin", "--codec", "int8", "--", "true"},
                    {"the loader replaces " + token + " in LD_LIBRARY_PATH"},
                    {{"XDG_CACHE_HOME", (folder.path() / ("a" + token)).string()},
                     {"SLIMWIRE_NCCL_LIBRARY", nccl}});
    }
}

TEST(Run, UnknownVariableIsNamed) {
    expect_says(125, {"run", "--", "true"}, {"SLIMWIRE_CODECC"}, {{"SLIMWIRE_CODECC", "int4"}});
}

TEST(Run, ArgumentErrorsAreOneLine) {
    const std::vector<std::vector<std::string>> wrong = {
        {"run"},
        {"run", "--"},
        {"run", "--codek", "int4", "--", "true"},
        {"run", "true"},
        {"run", "--emulate", "0", "--", "true"},
        {"run", "--emulate", "two", "--", "true"},
        {"run", "--grace", "nan", "--", "true"},
        {"run", "--codec", "int4", "--policy", "p.toml", "--", "true"},
        {"walk"},
        {},
    };
    for (const auto& arguments : wrong) {
        const Ended ended = run_slimwire(arguments);
        EXPECT_EQ(ended.exit_code, 2) << testing::PrintToString(arguments);
        expect_one_error_line(ended);
    }
}

TEST(Run, EnvironmentOfTheCommand) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP()
        << "built with a sanitizer: slimwire itself then cannot start below LD_PRELOAD=libm.so.6";
#endif
    const ScratchFolder folder;
    folder.write("p.toml", "version = 1\n");
    const std::string script = "cd \"$1\" && shift && exec \"$@\"";
    const std::vector<std::string> command =
        slimwire_command({"run", "--hook", "preload", "--policy", "p.toml", "--report",
                          "r-%r.jsonl", "--log", "info", "--", "env"});
    std::vector<std::string> in_folder{"sh", "-c", script, "sh", folder.path().string()};
    in_folder.insert(in_folder.end(), command.begin(), command.end());
    Program program(
        in_folder,
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
        std::vector<std::string> arguments{"run"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        for (const char* word :
             {"--", "sh", "-c",
              // Without a sanitizer's runtime before them.
              "preload=$(printf %s \"$LD_PRELOAD\" | sed 's|[^:]*san[.]so[^:]*:||g'); "
              "echo \"[$LD_AUDIT][$preload][$GLIBC_TUNABLES]\""}) {
            arguments.emplace_back(word);
        }
        const Ended ended = run_slimwire(arguments, environment);
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
        return ended.out;
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
        std::vector<std::string> arguments{"run", "--log", "info"};
        arguments.insert(arguments.end(), one.options.begin(), one.options.end());
        for (const char* word : {"--", "sh", "-c", "echo \"[$LD_AUDIT][$LD_PRELOAD]\""}) {
            arguments.emplace_back(word);
        }
        const Ended ended = run_slimwire(arguments, one.environment);
        EXPECT_EQ(ended.exit_code, 0) << ended.err;
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

TEST(Run, UnknownHookIsNamed) {
    for (const std::vector<std::string>& options :
         {std::vector<std::string>{"--hook", "ptrace"}, {"--hook", "audit", "--dropin"}}) {
        std::vector<std::string> arguments{"run"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.insert(arguments.end(), {"--", "true"});
        expect_says(2, arguments, {"--hook"});
    }
    EXPECT_HAS(run_slimwire({"run", "--hook", "ptrace", "--", "true"}).err,
               "preload, dropin, audit");
    EXPECT_EQ(run_slimwire({"run", "--native", "--hook", "audit", "--", "true"}).exit_code, 125);
}

// Libraries with more static thread-local data than the loader keeps free under LD_AUDIT.
TEST(Run, AuditLeavesRoomForStaticThreadLocalData) {
    const ScratchFolder folder;
    folder.write("t.c",
                 "__attribute__((tls_model(\"initial-exec\"))) __thread char big[SIZE];\n"
                 "int touch(void) { big[1] = 0; return big[1]; }\n");
    folder.write("p.c",
                 "#include <stdlib.h>\nint touch(void);\n"
                 "int main(void) { return touch() + (getenv(\"LD_AUDIT\") == NULL ? 3 : 0); }\n");
    for (const char* size : {"8000", "60000"}) {
        ASSERT_EQ(Program({"sh", "-ec",
                           "cd " + folder.path().string() +
                               " && cc -shared -fPIC -DSIZE=$1 -o libt$1.so t.c && cc -o p$1 p.c "
                               "-Wl,-rpath,'$ORIGIN' libt$1.so",
                           "sh", size})
                      .wait(60)
                      .exit_code,
                  0);
        const std::string program = folder.path().string() + "/p" + size;
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
    for (const std::vector<std::string>& option : {std::vector<std::string>{"--codec", "int4"},
                                                   {"--report", "r.%r"},
                                                   {"--mode", "record"},
                                                   {"--min-bytes", "1KiB"}}) {
        expect_says(125, {"run", "--native", option[0], option[1], "--", "true"},
                    {"leave out " + option[0]});
    }
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
        std::vector<std::string> command{"sh", "-c", "cd \"$0\" && exec \"$@\"", folder};
        std::vector<std::string> arguments{"run"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        arguments.insert(arguments.end(), {"--", "sh", "-c", script});
        const std::vector<std::string> run = slimwire_command(arguments);
        command.insert(command.end(), run.begin(), run.end());
        return Program(command, environment).wait().out;
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

TEST(Run, UnwritableReportFolderIsNamed) {
    Ended ended = run_slimwire({"run", "--report", "/no/such/folder/r-%r", "--", "true"});
    EXPECT_EQ(ended.exit_code, 125);
    expect_one_error_line(ended);
    EXPECT_HAS(ended.err, "/no/such/folder");
    // Root may write anywhere but into /proc.
    ended = run_slimwire({"run", "--report", "/proc/r-%r", "--", "true"});
    EXPECT_EQ(ended.exit_code, 125) << ended.err;
}

TEST(Run, LibraryOfAnotherArchitectureOrNoneIsNamed) {
    const ScratchFolder folder;
    std::string bytes = read_file(SLIMWIRE_LIBRARY_PATH);
    ASSERT_GT(bytes.size(), 64u);
    bytes[18] = static_cast<char>(0xf3);  // e_machine: RISC-V
    bytes[19] = 0;
    const std::string foreign = folder.write("libslimwire.so", bytes);
    Ended ended = run_slimwire({"run", "--library", foreign, "--", "true"});
    EXPECT_EQ(ended.exit_code, 125);
    expect_one_error_line(ended);
    EXPECT_HAS(ended.err, "riscv");
    ended = run_slimwire({"run", "--library", "/no/libslimwire.so", "--", "true"});
    EXPECT_EQ(ended.exit_code, 125);
    expect_one_error_line(ended);
}

TEST(Run, MissingNcclIsToldBeforeTheLoaderFails) {
    const ScratchFolder folder;
    // A program that needs a libnccl.so.2 which is then taken away.
    const std::string source = folder.write("p.c",
                                            "int ncclAllReduce(void); int main(void) { "
                                            "return ncclAllReduce(); }\n");
    const std::string library = folder.write("n.c", "int ncclAllReduce(void) { return 0; }\n");
    const std::string dir = folder.path().string();
    const Ended built = Program({"sh", "-c",
                                 "cd " + dir +
                                     " && cc -shared -fPIC -Wl,-soname,libnccl.so.77 -o "
                                     "libnccl.so.77 n.c && cc -o p p.c ./libnccl.so.77 && rm "
                                     "libnccl.so.77"})
                            .wait();
    ASSERT_EQ(built.exit_code, 0) << built.err;
    const Ended ended = run_slimwire({"run", "--", dir + "/p"});
    EXPECT_EQ(ended.exit_code, 127);  // the loader's own code
    EXPECT_HAS(ended.err, "slimwire: " + dir + "/p needs libnccl.so.77, which is not found");
    EXPECT_HAS(ended.err, "LD_LIBRARY_PATH");
}

TEST(Run, HelpListsOptionsVariablesAndExitCodes) {
    const Ended ended = run_slimwire({"run", "--help"});
    EXPECT_EQ(ended.exit_code, 0);
    for (const char* word : {"--emulate", "--link", "SLIMWIRE_CODEC", "SLIMWIRE_EMU_LINK", "127"}) {
        EXPECT_HAS(ended.out, word);
    }
    for (const char* command : {"policy", "doctor", "report", "bench", "run"}) {
        const Ended help = run_slimwire({command, "--help"});
        EXPECT_EQ(help.exit_code, 0) << command;
        EXPECT_HAS(help.out, "Usage: slimwire " + std::string(command));
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
    Ended ended = run_slimwire({"policy", "check", good});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.out, "1 rule, hash ");
    EXPECT_HAS(ended.out, "grads: op allreduce; dtype f32");
    EXPECT_HAS(ended.out, "int4");
    EXPECT_HAS(ended.out, "ef14");

    ended = run_slimwire({"policy", "check", "--json", good});
    EXPECT_HAS(ended.out, "\"ok\":true");
    EXPECT_HAS(ended.out, "\"op\":[\"allreduce\"]");

    const std::string many = folder.write(
        "many.toml",
        "version = 1\n[[rule]]\nname = \"grads\"\ncodec = \"topk:fraction=0.01\"\nef = \"ef14\"\n"
        "ramp = [{ until = 9, codec = \"native\" }]\n[[rule]]\nname = \"b\"\n"
        "match = { op = \"allreduce\" }\ncodec = \"powersgd:rank=1\"\n"
        "accordion = { low = \"powersgd:rank=2\", window = 50 }\n[[rule]]\nname = \"c\"\n"
        "match = { op = \"reducescatter\" }\ncodec = \"topk:fraction=0.01\"\nef = \"ef14\"\n"
        "average_every = 20\naverage_codec = \"int8\"\n"
        "step_ahead = { gain = 1.5, step_size = 0.1 }\n");
    ended = run_slimwire({"policy", "check", many});
    EXPECT_HAS(ended.out, "ramp { until 9, codec native }");
    EXPECT_HAS(ended.out,
               "accordion { low powersgd:rank=2, window 50, ratio 0.5, hysteresis 2, lr_drops ");
    EXPECT_HAS(ended.out, "average_every 20, average_codec int8");
    EXPECT_HAS(ended.out, "step_ahead { gain 1.5, step_size 0.1 }");
    EXPECT_HAS(ended.out, "not under Adam");
    ended = run_slimwire({"policy", "check", "--json", many});
    EXPECT_HAS(ended.out, "\"step_ahead\":{\"gain\":1.5,\"step_size\":0.1}");
    EXPECT_HAS(ended.out, "\"ramp\":[{\"until\":9,\"codec\":\"native\"}]");
    EXPECT_HAS(ended.out, "\"accordion\":{\"low\":\"powersgd:rank=2\",\"window\":50,");
    EXPECT_HAS(ended.out, "\"average_every\":20,\"average_codec\":\"int8\"");

    // What is known of gradients is not said of activations.
    const std::string sequence = folder.write(
        "sequence.toml",
        "version = 1\n[[rule]]\nname = \"s\"\nmatch = { op = [\"allgather\", "
        "\"reducescatter\"] }\nforward_calls = 2\ncodec = \"topk:fraction=0.05,pair=mask\"\n");
    ended = run_slimwire({"policy", "check", sequence});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out.find("Adam"), std::string::npos) << ended.out;

    // A file that is wrong does not hide the others.
    const std::string bad = folder.write("bad.toml", "version = 1\n[[rule]]\nname = 3\n");
    ended = run_slimwire({"policy", "check", bad, good});
    EXPECT_EQ(ended.exit_code, 1);
    expect_one_error_line(ended);
    EXPECT_HAS(ended.err, "bad.toml:3:");
    EXPECT_HAS(ended.out, "good.toml: 1 rule");
    EXPECT_EQ(run_slimwire({"policy", "check", "/no/such/file.toml"}).exit_code, 1);
    const std::string none = folder.write("none.toml", "version = 1\n");
    EXPECT_HAS(run_slimwire({"policy", "check", none}).out,
               "note: no rule compresses: all calls stay native");
    EXPECT_HAS(run_slimwire({"run", "--policy", none, "--", "true"}).err,
               "policy " + none + ": no rule compresses: all calls stay native");
}

TEST(Policy, EnvShowsWhereValuesComeFrom) {
    Ended ended = run_slimwire({"policy", "env", "--json"}, {{"SLIMWIRE_CODEC", "int8"}});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.out,
               "{\"name\":\"SLIMWIRE_CODEC\",\"value\":\"int8\",\"source\":"
               "\"environment\"}");
    EXPECT_HAS(ended.out, "\"active\":true");
    ended = run_slimwire({"policy", "env"}, {{"SLIMWIRE_CODEC", "int9"}});
    EXPECT_EQ(ended.exit_code, 1);
    expect_one_error_line(ended);
}

}  // namespace
}  // namespace slimwire::cli::test
