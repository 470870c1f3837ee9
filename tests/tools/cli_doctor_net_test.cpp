// `slimwire doctor` on the net plugin: found or not, taken or not, its values, its start; and what
// it says where UCX or the transport below is missing.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/cli_program.h"
#include "tools/cli/doctor/doctor.h"

namespace slimwire::cli::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Variables = std::map<std::string, std::string>;

const std::string kPlugin = SLIMWIRE_NET_PLUGIN_PATH;
const std::string kInner = SLIMWIRE_TEST_INNER "11.so";

using Said = Diagnosed;

Said in(Variables environment, const std::vector<std::string>& command = {}) {
    for (const char* name : {"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME"}) {
        environment.try_emplace(name, "");
    }
    return doctor(command, environment);
}

// Over the transport of another plugin, so that UCX need not be there.
Said over_inner(Variables more) {
    more.try_emplace("NCCL_NET_PLUGIN", kPlugin);
    more.try_emplace("NCCL_NET", "slimwire");
    more.try_emplace("SLIMWIRE_NET_INNER", kInner);
    return in(std::move(more));
}

TEST(DoctorNet, TheLibraryBesideTheCommandIsFoundAndItsTables) {
    const Said said = in({});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    expect_members(said.json["net"], {{"library", kPlugin},
                                      {"tables", {8, 9, 10, 11, 12}},
                                      {"tuners", {4, 5, 6, 7}},
                                      {"asked", ""},
                                      {"path", ""},
                                      {"started", false}});
    expect_prints({"doctor"},
                  {kPlugin + " (tables v8 to v12; of its tuner v4 to v7)",
                   "NCCL_NET_PLUGIN is not set: NCCL opens libnccl-net.so, which is not slimwire"},
                  {{"NCCL_NET_PLUGIN", ""}});
}

TEST(DoctorNet, TheNameThatNcclOpensByItself) {
    const ScratchFolder folder;
    const std::string link = (folder.path() / "libnccl-net.so").string();
    fs::create_symlink(kPlugin, link);
    const Said said =
        over_inner({{"NCCL_NET_PLUGIN", ""}, {"LD_LIBRARY_PATH", folder.path().string()}});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    EXPECT_EQ(said.json["net"]["path"], link);
    EXPECT_EQ(said.json["net"]["started"], true);
    EXPECT_EQ(said.of("warning"), "");
    EXPECT_EQ(said.of("error"), "");
}

TEST(DoctorNet, NcclsOwnFileSetsVariables) {
    const ScratchFolder folder;
    const std::string file = folder.write(
        "nccl.conf", "# ours\nNCCL_NET_PLUGIN=" + kPlugin + "\r\nNCCL_NET=slimwire\nNCCL_DEBUG\n");
    const Said said = doctor({}, {{"NCCL_CONF_FILE", file}, {"SLIMWIRE_NET_INNER", kInner}});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    expect_members(said.json["net"], {{"asked", kPlugin}, {"started", true}});
}

TEST(DoctorNet, ItIsStartedAsNcclWould) {
    const struct {
        Variables more;
        int exit_code;
        bool started;
        const char *severity, *said;
    } kCases[] = {
        {{}, 0, true, "note", ""},
        {{{"TEST_NET_WARNS", "1"}}, 0, true, "warning", "test plugin at work"},
        {{{"SLIMWIRE_NET_INNER", "/nowhere/libnccl-net-x.so"}},
         1,
         false,
         "error",
         "does not start: net plugin '/nowhere/libnccl-net-x.so'"},
        {{{"SLIMWIRE_MODE", "off"}}, 1, false, "error", "SLIMWIRE_MODE=off with NCCL_NET=slimwire"},
        {{{"SLIMWIRE_MODE", "off"}, {"NCCL_NET", ""}},
         0,
         false,
         "note",
         "SLIMWIRE_MODE=off: the net plugin does not start"},
        {{{"NCCL_NET_PLUGIN", ""}},
         1,
         false,
         "error",
         "it finds none of that name; set NCCL_NET_PLUGIN=slimwire"},
        {{{"NCCL_NET", "Socket"}}, 0, true, "warning", "NCCL_NET=Socket: NCCL uses that network"},
        {{{"NCCL_NET", ""}}, 0, true, "note", "without NCCL_NET=slimwire"},
    };
    for (const auto& one : kCases) {
        const Said said = over_inner(one.more);
        SCOPED_TRACE(said.json.dump());
        EXPECT_EQ(said.exit_code, one.exit_code);
        EXPECT_EQ(said.json["net"]["started"], one.started);
        if (one.started) {
            expect_members(said.json["net"], {{"path", kPlugin}, {"devices", {"TestTcp"}}});
        }
        EXPECT_HAS(said.of(one.severity), one.said);
        if (one.more.empty()) {
            EXPECT_HAS_NOT(said.of("note"), "NCCL_NET=slimwire");
            EXPECT_EQ(said.of("warning"), "");
        }
    }
}

TEST(DoctorNet, TheShortNameNeedsTheLoadersPath) {
    const std::string folder = fs::path(kPlugin).parent_path().string();
    Said said = in({{"NCCL_NET_PLUGIN", "slimwire"}, {"LD_LIBRARY_PATH", "/nowhere"}});
    EXPECT_EQ(said.exit_code, 1) << said.json;
    EXPECT_EQ(said.json["net"]["path"], "");
    EXPECT_HAS(said.of("error"), "libnccl-net-slimwire.so");
    EXPECT_HAS(said.of("error"), "set LD_LIBRARY_PATH=" + folder);
    said = over_inner({{"NCCL_NET_PLUGIN", "slimwire"}, {"LD_LIBRARY_PATH", folder}});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    EXPECT_EQ(said.json["net"]["path"], kPlugin);
    // A list is tried in order; what is no net plugin is passed over.
    said = over_inner({{"NCCL_NET_PLUGIN", "libm.so.6," + kInner + "," + kPlugin}});
    EXPECT_EQ(said.json["net"]["path"], kPlugin);
    EXPECT_HAS(said.of("note"), "NCCL tries libm.so.6 before slimwire");
    said = in({{"NCCL_NET_PLUGIN", kInner}});
    EXPECT_EQ(said.exit_code, 0);
    EXPECT_EQ(said.json["net"]["path"], "");
}

TEST(DoctorNet, AnotherSlimwireIsNoticed) {
    const ScratchFolder folder;
    const fs::path copy = folder.path() / "libnccl-net-slimwire.so";
    fs::copy_file(kPlugin, copy);
    const Said said = over_inner({{"NCCL_NET_PLUGIN", copy.string()}});
    EXPECT_EQ(said.json["net"]["path"], copy.string());
    EXPECT_HAS(said.of("warning"), "leads to " + copy.string() + ", not to " + kPlugin);
}

TEST(DoctorNet, EachValueIsCheckedByItself) {
    const Said said = over_inner({{"SLIMWIRE_NET_LINK", "10gb"},
                                  {"SLIMWIRE_NET_MIN_BYTES", "1MiB"},
                                  {"SLIMWIRE_NET_THREADS", "0"},
                                  {"SLIMWIRE_NET_CODECS", "off"}});
    EXPECT_EQ(said.exit_code, 1);
    std::map<std::string, std::string> errors;
    for (const Json& variable : said.json["net"]["variables"]) {
        errors[variable["name"]] = variable["error"];
    }
    ASSERT_EQ(errors.size(), 5u) << said.json;  // with SLIMWIRE_NET_INNER
    EXPECT_EQ(errors["SLIMWIRE_NET_MIN_BYTES"], "");
    EXPECT_EQ(errors["SLIMWIRE_NET_INNER"], "");
    EXPECT_HAS(errors["SLIMWIRE_NET_LINK"], "SLIMWIRE_NET_LINK: bad value '10gb'");
    EXPECT_HAS(errors["SLIMWIRE_NET_THREADS"], "accepted: a whole number from 1 to 256");
    EXPECT_HAS(errors["SLIMWIRE_NET_CODECS"], "the nearest known is SLIMWIRE_NET_CODEC");
    EXPECT_HAS(said.of("error"), errors["SLIMWIRE_NET_LINK"]);
    EXPECT_HAS_NOT(said.of("error"), "does not start");  // the same once more
    // Values that nobody reads.
    const Said unread = in({{"SLIMWIRE_NET_LINK", "10gbit,50us"}});
    EXPECT_EQ(unread.exit_code, 0);
    EXPECT_HAS(unread.of("warning"), "NCCL_NET_PLUGIN does not name slimwire");
}

TEST(DoctorNet, TheCommandsNcclDecidesTheTable) {
    for (const auto& [version, table] : std::map<std::string, int>{{"2.19.4", 0},
                                                                   {"2.20.0", 8},
                                                                   {"2.23.4", 8},
                                                                   {"2.24.3", 9},
                                                                   {"2.27.7", 10},
                                                                   {"2.28.9", 11},
                                                                   {"2.29.2", 11},
                                                                   {"2.30.7", 12},
                                                                   {"3.0.1", 12},
                                                                   {"", 0}}) {
        EXPECT_EQ(newest_net_table(version), table) << version;
    }
    const ScratchFolder folder;
    build_in(folder,
             "for v in 22703 21903; do mkdir $v\n"
             "cc -shared -fPIC -DVERSION=$v -Wl,-soname,libnccl.so.2 -o $v/libnccl.so.2 n.c\n"
             "cc -o p$v p.c $v/libnccl.so.2 -Wl,-rpath,$PWD/$v\ndone");
    const Variables plugin{{"NCCL_NET_PLUGIN", kPlugin}, {"SLIMWIRE_NET_INNER", kInner}};
    Said said = in(plugin, {folder.file("p22703")});
    EXPECT_EQ(said.exit_code, 0) << said.json;
    EXPECT_EQ(said.json["net"]["table"], 10);
    said = in(plugin, {folder.file("p21903")});
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_EQ(said.json["net"]["table"], 0);
    EXPECT_HAS(said.of("error"), "NCCL 2.19.3 takes none of the net plugin's tables");
}

#ifdef SLIMWIRE_HAVE_UCX
TEST(DoctorNet, AMissingUcxIsNamedWithWhatToDo) {
    const Variables plugin{
        {"NCCL_NET_PLUGIN", kPlugin}, {"NCCL_NET", "slimwire"}, {"SLIMWIRE_SOCKET_IFNAME", "lo"}};
    const Said whole = in(plugin);
    EXPECT_EQ(whole.exit_code, 0) << whole.json;
    EXPECT_EQ(whole.json["net"]["devices"], Json({"lo"}));
    // What the loader finds first is no library, or another one.
    const ScratchFolder folder;
    Variables without = plugin;
    without["LD_LIBRARY_PATH"] = folder.path().string();
    folder.write("libucp.so.0", "no library\n");
    Said said = in(without);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_EQ(said.json["ucx_version"], "");
    EXPECT_HAS(said.of("error"),
               "does not start: the net plugin needs UCX (Debian: apt-get install "
               "libucx0), or another plugin named by SLIMWIRE_NET_INNER");
    EXPECT_HAS(said.of("error"), "libucp.so.0: ");
    EXPECT_HAS(said.json["findings"].dump(), "UCX (libucp.so.0) is missing");
    folder.write("o.c", "int other(void) { return 0; }\n");
    const std::string base = folder.path().string();
    ASSERT_EQ(Program({"cc", "-shared", "-fPIC", "-o", base + "/libucp.so.0", base + "/o.c"})
                  .wait(60)
                  .exit_code,
              0);
    said = in(without);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_HAS(said.of("error"), "UCX 1.12 or newer is needed");
    Variables nowhere = plugin;
    nowhere["SLIMWIRE_SOCKET_IFNAME"] = "=nonesuch0";
    said = in(nowhere);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_HAS(said.of("error"), "'=nonesuch0'");
    Variables transports = plugin;
    transports["UCX_TLS"] = "rocket";
    said = in(transports);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_HAS(said.of("error"), "transports rocket (UCX_TLS; accepted:");
}
#endif

}  // namespace
}  // namespace slimwire::cli::test
