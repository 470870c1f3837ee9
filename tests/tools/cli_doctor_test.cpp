// What the loader is asked on small programs with every kind of search path; and `slimwire doctor`
// on programs that slimwire can and cannot reach.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/seed.h"
#include "tests/tools/cli_program.h"
#include "tools/cli/doctor/doctor.h"
#include "tools/cli/run/loader_search.h"

namespace slimwire::cli::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void shell(const ScratchFolder& folder, const std::string& script) {
    const Ended ended =
        Program({"sh", "-ec", "cd " + folder.path().string() + "\n" + script}).wait(120);
    ASSERT_EQ(ended.exit_code, 0) << script << "\n" << ended.err;
}

// libnccl.so.2 in a/ and b/, libmid.so.1 in mid/ that needs it, programs that need either, each
// with another way to find them.
class Loader : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        folder_ = new ScratchFolder;
        folder_->write("n.c",
                       "int ncclAllReduce(void) { return 0; }\n"
                       "int ncclGetVersion(int* v) { *v = VERSION; return 0; }\n");
        folder_->write("mid.c",
                       "int ncclAllReduce(void); int mid(void) { return ncclAllReduce(); }\n");
        folder_->write("p.c",
                       "int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }\n");
        folder_->write("q.c", "int mid(void); int main(void) { return mid(); }\n");
        shell(
            *folder_,
            "mkdir -p a b mid bin\n"
            "for d in a b; do\n"
            "  v=22809; [ $d = b ] && v=22703\n"
            "  cc -shared -fPIC -DVERSION=$v -Wl,-soname,libnccl.so.2 -o $d/libnccl.so.2 n.c\n"
            "done\n"
            "cc -shared -fPIC -Wl,-soname,libmid.so.1 -o mid/libmid.so.1 mid.c a/libnccl.so.2\n"
            "cc -shared -fPIC -Wl,-soname,libmid.so.1 -Wl,--enable-new-dtags,-rpath,'$ORIGIN/../b' "
            "-o mid/libmid-runpath.so mid.c a/libnccl.so.2\n"
            "rpath() { echo \"-Wl,--disable-new-dtags,-rpath,$1\"; }\n"
            "runpath() { echo \"-Wl,--enable-new-dtags,-rpath,$1\"; }\n"
            "cc -o bin/plain p.c a/libnccl.so.2\n"
            "cc -o bin/rpath p.c a/libnccl.so.2 $(rpath '$ORIGIN/../a')\n"
            "cc -o bin/runpath p.c a/libnccl.so.2 $(runpath '${ORIGIN}/../a')\n"
            "cc -o bin/two p.c a/libnccl.so.2 $(runpath /nowhere:'$ORIGIN'/../b:'$ORIGIN'/../a)\n"
            "link=-Wl,--allow-shlib-undefined\n"
            "cc -o bin/deep-rpath q.c mid/libmid.so.1 $link $(rpath "
            "'$ORIGIN/../mid:$ORIGIN/../a')\n"
            "cc -o bin/deep-runpath q.c mid/libmid.so.1 $link $(runpath "
            "'$ORIGIN/../mid:$ORIGIN/../a')\n"
            "mkdir mid2 && cp mid/libmid-runpath.so mid2/libmid.so.1\n"
            "cc -o bin/deep-own q.c mid2/libmid.so.1 $link $(rpath "
            "'$ORIGIN/../mid2:$ORIGIN/../a')\n");
    }
    static void TearDownTestSuite() { delete folder_; }

    // Where libnccl.so.2 lies by the loader, and how it found it.
    static LoadedObject nccl_of(const std::string& program,
                                const std::map<std::string, std::string>& variables,
                                const std::string& opened = {}) {
        Environment environment;
        for (const auto& [name, value] : variables) {
            environment.set(name, value);
        }
        const Result<LoadPlan> plan =
            list_libraries(read_elf(program).value(), environment, opened);
        EXPECT_TRUE(plan.ok()) << plan.status().message();
        const LoadedObject* found = plan.ok() ? plan.value().find("libnccl.so.2") : nullptr;
        LoadedObject nccl = found == nullptr ? LoadedObject{} : *found;
        nccl.path = nccl.path.empty() ? fs::path() : fs::canonical(nccl.path);
        return nccl;
    }
    static std::string at(const std::string& name) { return (folder_->path() / name).string(); }

    static ScratchFolder* folder_;
};
ScratchFolder* Loader::folder_ = nullptr;

TEST_F(Loader, SaysWhereAndHowItFindsALibrary) {
    LoadedObject nccl = nccl_of(at("bin/rpath"), {{"LD_LIBRARY_PATH", at("b")}});
    EXPECT_EQ(nccl.path, at("a/libnccl.so.2"));
    EXPECT_EQ(nccl.found_by, "rpath of " + at("bin/rpath"));
    EXPECT_EQ(nccl.requested_by, at("bin/rpath"));
    nccl = nccl_of(at("bin/runpath"), {});
    EXPECT_EQ(nccl.path, at("a/libnccl.so.2"));
    EXPECT_EQ(nccl.found_by, "runpath of " + at("bin/runpath"));
    nccl = nccl_of(at("bin/runpath"), {{"LD_LIBRARY_PATH", at("b")}});
    EXPECT_EQ(nccl.path, at("b/libnccl.so.2"));
    EXPECT_EQ(nccl.found_by, "LD_LIBRARY_PATH");
    EXPECT_EQ(nccl_of(at("bin/two"), {}).path, at("b/libnccl.so.2"));
    nccl = nccl_of(at("bin/deep-rpath"), {});
    EXPECT_EQ(nccl.path, at("a/libnccl.so.2"));
    EXPECT_HAS(nccl.requested_by, "libmid.so.1");
    EXPECT_EQ(nccl_of(at("bin/deep-own"), {}).path, at("b/libnccl.so.2"));
    EXPECT_NE(nccl_of(at("bin/deep-runpath"), {}).path, at("a/libnccl.so.2"));
    nccl = nccl_of(at("bin/plain"), {{"LD_PRELOAD", at("b/libnccl.so.2")}});
    EXPECT_EQ(nccl.path, at("b/libnccl.so.2"));
    EXPECT_EQ(nccl.found_by, "LD_PRELOAD");
    // A library as well as a program, and one that is opened.
    EXPECT_EQ(nccl_of(at("mid2/libmid.so.1"), {}).path, at("b/libnccl.so.2"));
    EXPECT_EQ(nccl_of("/bin/sh", {{"LD_LIBRARY_PATH", at("b")}}, "libnccl.so.2").path,
              at("b/libnccl.so.2"));
    EXPECT_EQ(nccl_of("/bin/sh", {{"LD_LIBRARY_PATH", at("b")}}).path, "");
    EXPECT_EQ(architecture_name(2, 0xf3), "riscv");
}

Json doctor(const std::vector<std::string>& command,
            const std::map<std::string, std::string>& environment,
            int* exit_code = nullptr) {
    std::vector<std::string> arguments{"doctor", "--json", "--"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Ended ended = run_slimwire(arguments, environment);
    if (exit_code != nullptr) {
        *exit_code = ended.exit_code;
    }
    const std::vector<std::string> lines = lines_of(ended.out);
    return lines.size() == 1 ? Json::parse(lines[0]) : Json{{"bad output", ended.out + ended.err}};
}

std::string findings(const Json& json, const std::string& severity) {
    std::string text;
    for (const Json& finding : json.at("findings")) {
        text += finding["severity"] == severity ? finding["text"].get<std::string>() + "\n" : "";
    }
    return text;
}

TEST_F(Loader, DoctorNamesLibraryVersionAndHook) {
    int exit_code = -1;
    const Json json = doctor({at("bin/rpath"), "--epochs", "3"}, {}, &exit_code);
    EXPECT_EQ(exit_code, 0) << json;
    EXPECT_EQ(json["record"], "doctor");
    EXPECT_EQ(json["hook"], "LD_PRELOAD");
    EXPECT_EQ(json["program"], at("bin/rpath"));
    ASSERT_EQ(json["libraries"].size(), 1u) << json;
    EXPECT_EQ(json["libraries"][0]["name"], "libnccl.so.2");
    EXPECT_EQ(json["libraries"][0]["version"], "2.28.9");
    EXPECT_HAS(json["libraries"][0]["found_by"].get<std::string>(), "rpath of ");
    EXPECT_HAS(findings(json, "note"), "--hook dropin would be ignored");
    const Json other = doctor({at("bin/runpath")}, {{"LD_LIBRARY_PATH", at("b")}});
    EXPECT_EQ(other["libraries"][0]["version"], "2.27.3");
    EXPECT_EQ(other["libraries"][0]["found_by"], "LD_LIBRARY_PATH");
    // The text says the same, and how to go on.
    const Ended text = run_slimwire({"doctor", "--", at("bin/rpath")});
    for (const char* part :
         {"hook      LD_PRELOAD", "version 2.28.9", "mpirun", "srun", "torchrun", "container"}) {
        EXPECT_HAS(text.out, part);
    }
}

TEST_F(Loader, DoctorFollowsScripts) {
    const ScratchFolder scripts;
    scripts.write("inner", "#!/usr/bin/env -S " + at("bin/rpath") + " -x\n", 0755);
    const std::string outer =
        scripts.write("outer", "#!" + scripts.path().string() + "/inner\n", 0755);
    Json json = doctor({outer}, {});
    EXPECT_EQ(json["program"], at("bin/rpath"));
    EXPECT_EQ(json["chain"].size(), 2u);
    EXPECT_EQ(json["hook"], "LD_PRELOAD");
    const std::string shell_script = scripts.write("train.sh", "#!/bin/sh\n./train\n", 0755);
    json = doctor({shell_script}, {});
    EXPECT_EQ(json["kind"], "shell script");
    EXPECT_EQ(json["hook"], "unknown");
    const std::string dangling = scripts.write("gone", "#!/no/such/python\n", 0755);
    int exit_code = -1;
    json = doctor({dangling}, {}, &exit_code);
    EXPECT_EQ(exit_code, 1);
    EXPECT_HAS(findings(json, "error"), "/no/such/python");
}

TEST(Doctor, StaticNcclAndStaticPrograms) {
    const ScratchFolder folder;
    folder.write("n.c", "int ncclAllReduce(void) { return 0; }\n");
    folder.write("p.c", "int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }\n");
    folder.write("s.c", "void _start(void) { for (;;) {} }\n");
    folder.write("d.c",
                 "#include <dlfcn.h>\nint main(void) { return dlopen(\"libnccl.so.2\", 1) == 0; "
                 "}\n");
    shell(folder,
          "cc -c n.c && ar rc libnccl_static.a n.o\n"
          "cc -o hidden p.c libnccl_static.a\n"
          "cc -shared -fPIC -o libexported.so n.c\n"
          "cc -static -nostdlib -o static s.c\n"
          "cc -static-pie -nostdlib -o static-pie s.c\n"
          "cc -o opener d.c -ldl\n");
    const std::string base = folder.path().string() + "/";
    int exit_code = -1;
    Json json = doctor({base + "hidden"}, {}, &exit_code);
    EXPECT_EQ(json["hook"], "unreachable");
    EXPECT_EQ(exit_code, 1);
    EXPECT_HAS(findings(json, "error"), "linked in statically");
    json = doctor({base + "libexported.so"}, {}, &exit_code);
    EXPECT_EQ(json["hook"], "LD_PRELOAD");
    EXPECT_HAS(findings(json, "warning"), "linked in statically");
    for (const char* name : {"static", "static-pie"}) {
        json = doctor({base + name}, {}, &exit_code);
        EXPECT_EQ(json["kind"], "static program") << name;
        EXPECT_EQ(json["hook"], "unreachable") << name;
        EXPECT_EQ(json["hooks"]["audit"], "no") << name;
        EXPECT_EQ(exit_code, 1);
    }
    json = doctor({base + "opener"}, {}, &exit_code);
    EXPECT_EQ(json["hook"], "LD_AUDIT");
    EXPECT_EQ(json["hooks"], (Json{{"preload", "no"}, {"dropin", "by name"}, {"audit", "yes"}}));
    EXPECT_HAS(json["binding"].get<std::string>(), "opener opens libnccl.so.2 at run time");
    json = doctor({"sleep", "1"}, {}, &exit_code);
    EXPECT_EQ(json["hook"], "no NCCL");
    EXPECT_EQ(json["hooks"]["audit"], "unknown");
    EXPECT_EQ(exit_code, 0);
}

TEST(Doctor, WhatIsMissingIsAnError) {
    const ScratchFolder folder;
    folder.write("n.c", "int ncclAllReduce(void) { return 0; }\n");
    folder.write("p.c", "int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }\n");
    shell(folder, "cc -shared -fPIC -Wl,-soname,libnccl.so.77 -o n.so n.c && cc -o p p.c ./n.so\n");
    int exit_code = -1;
    Json json = doctor({folder.path().string() + "/p"}, {}, &exit_code);
    EXPECT_EQ(exit_code, 1);
    EXPECT_HAS(findings(json, "error"), "needs libnccl.so.77, which is not found");
    json = doctor({"no-such-command-here"}, {}, &exit_code);
    EXPECT_EQ(exit_code, 1);
    std::string foreign = read_file(folder.path() / "p");
    foreign[18] = static_cast<char>(0xf3);
    const std::string program = folder.write("foreign", foreign, 0755);
    json = doctor({program}, {}, &exit_code);
    EXPECT_EQ(exit_code, 1);
    EXPECT_HAS(findings(json, "error"), "riscv");
    // The loader keeps every hook out of it.
    const std::string owners = folder.write("owners", read_file(folder.path() / "p"), 0755);
    if (::geteuid() == 0 && ::chown(owners.c_str(), 65534, 65534) == 0 &&
        ::chmod(owners.c_str(), 04755) == 0) {
        json = doctor({owners}, {}, &exit_code);
        EXPECT_EQ(exit_code, 1);
        EXPECT_EQ(json["hook"], "unreachable");
        EXPECT_EQ(json["hooks"], (Json{{"preload", "no"}, {"dropin", "no"}, {"audit", "no"}}));
        EXPECT_HAS(findings(json, "error"), "has its owner's rights");
    }
    // Of a download that ended early neither what it needs nor that it needs nothing is known.
    const std::string whole = read_file(folder.path() / "p");
    for (const size_t bytes : {size_t{40}, size_t{64}, size_t{200}, whole.size() / 2}) {
        const std::string cut = folder.write("cut", whole.substr(0, bytes), 0755);
        EXPECT_HAS(
            findings(doctor({cut}, {}, &exit_code), "error"),
            bytes < 64 ? "ends inside the ELF header" : "cut short: its segments end beyond its");
        EXPECT_EQ(exit_code, 1);
    }
}

TEST(Doctor, PythonModulesAreFoundByPath) {
    const ScratchFolder folder;
    folder.write("n.c",
                 "int ncclAllReduce(void) { return 0; }\n"
                 "int ncclGetVersion(int* v) { *v = 22604; return 0; }\n");
    folder.write("t.c", "int ncclAllReduce(void); int t(void) { return ncclAllReduce(); }\n");
    // As a PyTorch wheel: RPATH to the nvidia-nccl package beside it. Importing it would fail
    // loudly.
    folder.write("site/torch/__init__.py", "raise SystemExit('torch was imported')\n");
    shell(folder,
          "mkdir -p site/nvidia/nccl/lib site/torch/lib\n"
          "cc -shared -fPIC -Wl,-soname,libnccl.so.2 -o site/nvidia/nccl/lib/libnccl.so.2 n.c\n"
          "cc -shared -fPIC -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../../nvidia/nccl/lib' "
          "-o site/torch/lib/libtorch_cuda.so t.c site/nvidia/nccl/lib/libnccl.so.2\n");
    const Json json = doctor({SLIMWIRE_TEST_PYTHON, "train.py"},
                             {{"PYTHONPATH", folder.path().string() + "/site"}});
    EXPECT_EQ(json["kind"], "python");
    EXPECT_EQ(json["hook"], "LD_PRELOAD") << json;
    EXPECT_HAS(json["hook_reason"].get<std::string>(), "PyTorch");
    ASSERT_EQ(json["libraries"].size(), 1u) << json;
    EXPECT_EQ(json["libraries"][0]["version"], "2.26.4");
    EXPECT_EQ(json["hooks"]["dropin"], "no");  // RPATH
    // The library itself can be asked about.
    const Json library = doctor({folder.path().string() + "/site/torch/lib/libtorch_cuda.so"}, {});
    EXPECT_EQ(library["kind"], "library");
    EXPECT_EQ(library["hook"], "LD_PRELOAD");
    EXPECT_EQ(library["hooks"], json["hooks"]);
}

TEST(Doctor, PythonScriptsThatOpenNccl) {
    const ScratchFolder folder;
    const std::string client = folder.write(
        "client.py", "#!" SLIMWIRE_TEST_PYTHON "\nctypes.CDLL('libnccl.so.2')\n", 0755);
    const std::string other =
        folder.write("other.py", "#!" SLIMWIRE_TEST_PYTHON "\nprint()\n", 0755);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{SLIMWIRE_TEST_PYTHON, "-B", client}, {client}}) {
        const Json json = doctor(command, {{"VLLM_NCCL_SO_PATH", "/opt/libnccl.so.2"}});
        EXPECT_EQ(json["hook"], "LD_AUDIT");
        EXPECT_EQ(json["hooks"]["preload"], "no");
        EXPECT_HAS(json["binding"].get<std::string>(), "client.py opens libnccl.so.2");
        EXPECT_HAS(findings(json, "note"), "VLLM_NCCL_SO_PATH=/opt/libnccl.so.2");
    }
    EXPECT_EQ(doctor({SLIMWIRE_TEST_PYTHON, other}, {})["hooks"]["preload"], "unknown");
}

TEST(Doctor, OtherLibraryIsExamined) {
    int exit_code = -1;
    Json json = doctor({"sleep", "1"}, {}, &exit_code);
    EXPECT_EQ(json["library"], SLIMWIRE_LIBRARY_PATH);
    json = doctor({"sleep", "1"}, {{"SLIMWIRE_LIBRARY", "/no/libslimwire.so"}}, &exit_code);
    EXPECT_EQ(exit_code, 1);
    EXPECT_HAS(findings(json, "error"), "/no/libslimwire.so");
}

TEST(Doctor, ModesThatCompressNothingAreSaid) {
    Ended ended = run_slimwire({"doctor"}, {{"SLIMWIRE_MODE", "record"}});
    EXPECT_HAS(ended.out, "its calls are written to slimwire-trace.%h.%p.jsonl");
    ended = run_slimwire({"doctor"}, {{"SLIMWIRE_MODE", "record"}, {"SLIMWIRE_TRACE", "/t/%r"}});
    EXPECT_HAS(ended.out, "its calls are written to /t/%r");
    ended = run_slimwire({"doctor"}, {{"SLIMWIRE_MODE", "shadow"}});
    EXPECT_HAS(ended.out, "the policy is only tried beside it");
    ended = run_slimwire({"doctor"}, {{"SLIMWIRE_MODE", "off"}});
    EXPECT_HAS(ended.out, "every call is forwarded as it is");
    ended = run_slimwire({"doctor"});
    EXPECT_HAS_NOT(ended.out, "SLIMWIRE_MODE");
}

TEST(Doctor, WhatEveryJobWouldRefuseIsAnError) {
    const std::pair<const char*, const char*> wrong[] = {
        {"SLIMWIRE_CODEC", "int9"}, {"SLIMWIRE_CODCE", "int8"}, {"SLIMWIRE_POLICY", "/no/p.toml"}};
    for (const auto& [name, value] : wrong) {
        const Ended ended = run_slimwire({"doctor"}, {{name, value}});
        EXPECT_EQ(ended.exit_code, 1) << name;
        EXPECT_HAS(ended.out, std::string(name) == "SLIMWIRE_POLICY" ? value : name);
    }
    const Ended lossy = run_slimwire({"doctor"}, {{"SLIMWIRE_CODEC", "topk"}});
    EXPECT_EQ(lossy.exit_code, 0) << lossy.err;
    EXPECT_HAS(lossy.out, "has no error feedback, which topk needs");
}

TEST(Doctor, LaunchersAreNotMistakenForTheProgram) {
    const ScratchFolder folder;
    folder.write("mpirun", "#!/bin/sh\n", 0755);
    const Json json = doctor({folder.path().string() + "/mpirun", "-n", "4", "./train"}, {});
    EXPECT_HAS(findings(json, "note"), "mpirun is a launcher");
}

TEST(ElfFiles, DamagedFilesAreRefusedNotBelieved) {
    const ScratchFolder folder;
    const std::string whole = read_file(SLIMWIRE_LIBRARY_PATH).substr(0, 65536);
    ASSERT_GT(whole.size(), 4096u);
    const auto seed = test_seed();
    std::mt19937_64 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (int i = 0; i < 200; ++i) {
        std::string bytes = whole;
        if (i % 2 == 0) {
            bytes.resize(random() % bytes.size());
        }
        for (int change = 0; change < 8 && !bytes.empty(); ++change) {
            bytes[random() % std::min<size_t>(bytes.size(), 1024)] = static_cast<char>(random());
        }
        (void)read_elf(folder.write("damaged", bytes));
    }
    EXPECT_EQ(read_elf(folder.write("empty", "")).status().code(), Code::kUnsupported);
    EXPECT_EQ(read_elf(folder.write("text", "hello\n")).status().code(), Code::kUnsupported);
    EXPECT_EQ(read_elf("/no/such/file").status().code(), Code::kNotFound);
    EXPECT_EQ(read_elf(folder.write("cut", whole.substr(0, 40))).status().code(),
              Code::kInvalidArgument);
}

}  // namespace
}  // namespace slimwire::cli::test
