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

// libnccl.so.2 in a/ and b/, libmid.so.1 in mid/ that needs it, programs that need either, each
// with another way to find them.
class Loader : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        folder_ = new ScratchFolder;
        folder_->write("mid.c",
                       "int ncclAllReduce(void); int mid(void) { return ncclAllReduce(); }\n");
        folder_->write("q.c", "int mid(void); int main(void) { return mid(); }\n");
        build_in(
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

// Findings of an error, by which it ends with a failure.
std::string error_found(const std::vector<std::string>& command,
                        const std::map<std::string, std::string>& environment = {}) {
    const Diagnosed said = doctor(command, environment);
    EXPECT_EQ(said.exit_code, 1) << said.json;
    return said.of("error");
}

TEST_F(Loader, DoctorNamesLibraryVersionAndHook) {
    const Diagnosed said = doctor({at("bin/rpath"), "--epochs", "3"});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    expect_members(said.json, {{"record", "doctor"},
                               {"hook", "LD_PRELOAD"},
                               {"program", at("bin/rpath")},
                               {"library", SLIMWIRE_LIBRARY_PATH}});
    ASSERT_EQ(said.json["libraries"].size(), 1u) << said.json;
    const Json& nccl = said.json["libraries"][0];
    expect_members(nccl, {{"name", "libnccl.so.2"}, {"version", "2.28.9"}});
    EXPECT_HAS(nccl["found_by"].get<std::string>(), "rpath of ");
    EXPECT_HAS(said.of("note"), "--hook dropin would be ignored");
    const Json other = doctor({at("bin/runpath")}, {{"LD_LIBRARY_PATH", at("b")}}).json;
    expect_members(other["libraries"][0], {{"version", "2.27.3"}, {"found_by", "LD_LIBRARY_PATH"}});
    // The text says the same, and how to go on.
    expect_prints({"doctor", "--", at("bin/rpath")}, {"hook      LD_PRELOAD", "version 2.28.9",
                                                      "mpirun", "srun", "torchrun", "container"});
    // Another library that is not there.
    EXPECT_HAS(error_found({at("bin/rpath")}, {{"SLIMWIRE_LIBRARY", "/no/libslimwire.so"}}),
               "/no/libslimwire.so");
}

TEST_F(Loader, DoctorFollowsScripts) {
    const ScratchFolder scripts;
    scripts.write("inner", "#!/usr/bin/env -S " + at("bin/rpath") + " -x\n", 0755);
    const std::string outer = scripts.write("outer", "#!" + scripts.file("inner") + "\n", 0755);
    const Json json = doctor({outer}).json;
    expect_members(json, {{"program", at("bin/rpath")}, {"hook", "LD_PRELOAD"}});
    EXPECT_EQ(json["chain"].size(), 2u);
    const std::string train = scripts.write("train.sh", "#!/bin/sh\n./train\n", 0755);
    expect_members(doctor({train}).json, {{"kind", "shell script"}, {"hook", "unknown"}});
    EXPECT_HAS(error_found({scripts.write("gone", "#!/no/such/python\n", 0755)}),
               "/no/such/python");
    const std::string launcher = scripts.write("mpirun", "#!/bin/sh\n", 0755);
    EXPECT_HAS(doctor({launcher, "-n", "4", "./train"}).of("note"), "mpirun is a launcher");
}

TEST(Doctor, StaticNcclAndStaticPrograms) {
    const ScratchFolder folder;
    folder.write("s.c", "void _start(void) { for (;;) {} }\n");
    folder.write("d.c",
                 "#include <dlfcn.h>\nint main(void) { return dlopen(\"libnccl.so.2\", 1) == 0; "
                 "}\n");
    build_in(folder,
             "cc -c n.c && ar rc libnccl_static.a n.o\n"
             "cc -o hidden p.c libnccl_static.a\n"
             "cc -shared -fPIC -o libexported.so n.c\n"
             "cc -static -nostdlib -o static s.c\n"
             "cc -static-pie -nostdlib -o static-pie s.c\n"
             "cc -o opener d.c -ldl\n");
    EXPECT_HAS(error_found({folder.file("hidden")}), "linked in statically");
    expect_members(doctor({folder.file("hidden")}).json, {{"hook", "unreachable"}});
    const Diagnosed exported = doctor({folder.file("libexported.so")});
    EXPECT_EQ(exported.json["hook"], "LD_PRELOAD");
    EXPECT_HAS(exported.of("warning"), "linked in statically");
    for (const char* name : {"static", "static-pie"}) {
        const Diagnosed said = doctor({folder.file(name)});
        EXPECT_EQ(said.exit_code, 1);
        expect_members(said.json, {{"kind", "static program"}, {"hook", "unreachable"}});
        EXPECT_EQ(said.json["hooks"]["audit"], "no") << name;
    }
    const Json opener = doctor({folder.file("opener")}).json;
    expect_members(opener,
                   {{"hook", "LD_AUDIT"},
                    {"hooks", {{"preload", "no"}, {"dropin", "by name"}, {"audit", "yes"}}}});
    EXPECT_HAS(opener["binding"].get<std::string>(), "opener opens libnccl.so.2 at run time");
    const Diagnosed sleep = doctor({"sleep", "1"});
    EXPECT_EQ(sleep.exit_code, 0);
    EXPECT_EQ(sleep.json["hook"], "no NCCL");
    EXPECT_EQ(sleep.json["hooks"]["audit"], "unknown");
}

TEST(Doctor, WhatIsMissingIsAnError) {
    const ScratchFolder folder;
    build_in(folder,
             "cc -shared -fPIC -Wl,-soname,libnccl.so.77 -o n.so n.c && cc -o p p.c ./n.so\n");
    EXPECT_HAS(error_found({folder.file("p")}), "needs libnccl.so.77, which is not found");
    EXPECT_HAS(error_found({"no-such-command-here"}), "no such command in PATH");
    const std::string whole = read_file(folder.file("p"));
    std::string foreign = whole;
    foreign[18] = static_cast<char>(0xf3);
    EXPECT_HAS(error_found({folder.write("foreign", foreign, 0755)}), "riscv");
    // The loader keeps every hook out of it.
    const std::string owners = folder.write("owners", whole, 0755);
    if (::geteuid() == 0 && ::chown(owners.c_str(), 65534, 65534) == 0 &&
        ::chmod(owners.c_str(), 04755) == 0) {
        EXPECT_HAS(error_found({owners}), "has its owner's rights");
        expect_members(doctor({owners}).json,
                       {{"hook", "unreachable"},
                        {"hooks", {{"preload", "no"}, {"dropin", "no"}, {"audit", "no"}}}});
    }
    // Of a download that ended early neither what it needs nor that it needs nothing is known.
    for (const size_t bytes : {size_t{40}, size_t{64}, size_t{200}, whole.size() / 2}) {
        EXPECT_HAS(
            error_found({folder.write("cut", whole.substr(0, bytes), 0755)}),
            bytes < 64 ? "ends inside the ELF header" : "cut short: its segments end beyond its");
    }
}

TEST(Doctor, PythonModulesAreFoundByPath) {
    const ScratchFolder folder;
    folder.write("t.c", "int ncclAllReduce(void); int t(void) { return ncclAllReduce(); }\n");
    // As a PyTorch wheel: RPATH to the nvidia-nccl package beside it. Importing it would fail
    // loudly.
    folder.write("site/torch/__init__.py", "raise SystemExit('torch was imported')\n");
    build_in(folder,
             "mkdir -p site/nvidia/nccl/lib site/torch/lib\n"
             "cc -shared -fPIC -Wl,-soname,libnccl.so.2 -o site/nvidia/nccl/lib/libnccl.so.2 n.c\n"
             "cc -shared -fPIC -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../../nvidia/nccl/lib' "
             "-o site/torch/lib/libtorch_cuda.so t.c site/nvidia/nccl/lib/libnccl.so.2\n");
    const Json json =
        doctor({SLIMWIRE_TEST_PYTHON, "train.py"}, {{"PYTHONPATH", folder.file("site")}}).json;
    expect_members(json, {{"kind", "python"}, {"hook", "LD_PRELOAD"}});
    EXPECT_HAS(json["hook_reason"].get<std::string>(), "PyTorch");
    ASSERT_EQ(json["libraries"].size(), 1u) << json;
    EXPECT_EQ(json["libraries"][0]["version"], "2.26.4");
    EXPECT_EQ(json["hooks"]["dropin"], "no");  // RPATH
    // The library itself can be asked about.
    expect_members(doctor({folder.file("site/torch/lib/libtorch_cuda.so")}).json,
                   {{"kind", "library"}, {"hook", "LD_PRELOAD"}, {"hooks", json["hooks"]}});
}

TEST(Doctor, PythonScriptsThatOpenNccl) {
    const ScratchFolder folder;
    const std::string client = folder.write(
        "client.py", "#!" SLIMWIRE_TEST_PYTHON "\nctypes.CDLL('libnccl.so.2')\n", 0755);
    const std::string other =
        folder.write("other.py", "#!" SLIMWIRE_TEST_PYTHON "\nprint()\n", 0755);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{SLIMWIRE_TEST_PYTHON, "-B", client}, {client}}) {
        const Diagnosed said = doctor(command, {{"VLLM_NCCL_SO_PATH", "/opt/libnccl.so.2"}});
        EXPECT_EQ(said.json["hook"], "LD_AUDIT");
        EXPECT_EQ(said.json["hooks"]["preload"], "no");
        EXPECT_HAS(said.json["binding"].get<std::string>(), "client.py opens libnccl.so.2");
        EXPECT_HAS(said.of("note"), "VLLM_NCCL_SO_PATH=/opt/libnccl.so.2");
    }
    EXPECT_EQ(doctor({SLIMWIRE_TEST_PYTHON, other}).json["hooks"]["preload"], "unknown");
}

TEST(Doctor, WhatTheEnvironmentSaysIsSaid) {
    const struct {
        int exit_code;
        std::map<std::string, std::string> environment;
        const char* said;
    } kCases[] = {
        {0, {{"SLIMWIRE_MODE", "record"}}, "its calls are written to slimwire-trace.%h.%p.jsonl"},
        {0,
         {{"SLIMWIRE_MODE", "record"}, {"SLIMWIRE_TRACE", "/t/%r"}},
         "its calls are written to /t/%r"},
        {0, {{"SLIMWIRE_MODE", "shadow"}}, "the policy is only tried beside it"},
        {0, {{"SLIMWIRE_MODE", "off"}}, "every call is forwarded as it is"},
        {0, {{"SLIMWIRE_CODEC", "topk"}}, "has no error feedback, which topk needs"},
        {1, {{"SLIMWIRE_CODEC", "int9"}}, "SLIMWIRE_CODEC"},
        {1, {{"SLIMWIRE_CODCE", "int8"}}, "SLIMWIRE_CODCE"},
        {1, {{"SLIMWIRE_POLICY", "/no/p.toml"}}, "/no/p.toml"},
    };
    for (const auto& one : kCases) {
        const Ended ended = run_slimwire({"doctor"}, one.environment);
        EXPECT_EQ(ended.exit_code, one.exit_code) << one.said;
        EXPECT_HAS(ended.out, one.said);
    }
    EXPECT_HAS_NOT(succeed({"doctor"}).out, "SLIMWIRE_MODE");
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
