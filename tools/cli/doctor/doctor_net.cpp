#include "tools/cli/doctor/doctor.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>
#include <strings.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "plugin/net/abi/net.h"
#include "plugin/net/settings.h"
#include "tools/cli/common/subprocess.h"

namespace slimwire::cli {
namespace {

constexpr int kOldestTable = 8;
constexpr int kNewestTable = 12;
constexpr int kOldestTuner = 4;
constexpr int kNewestTuner = 7;
constexpr char kNetTable[] = "ncclNetPlugin_v";
constexpr char kTunerTable[] = "ncclTunerPlugin_v";
constexpr char kTuner = 't';  // begins a line with a version of the tuner's table
constexpr char kPrefix[] = "SLIMWIRE_NET_";
constexpr char kTableName[] = "slimwire";
constexpr char kDefaultPlugin[] = "libnccl-net.so";  // NCCL's without NCCL_NET_PLUGIN

// --- In a child

// As NCCL: the entry as it stands, then as libnccl-net-<entry>.so unless it is a file's name.
void* open_entry(const std::string& entry) {
    void* handle = ::dlopen(entry.c_str(), RTLD_NOW | RTLD_LOCAL);
    const bool is_file = entry.find('/') != std::string::npos ||
                         (entry.starts_with("lib") && entry.ends_with(".so"));
    return handle != nullptr || is_file
               ? handle
               : ::dlopen(("libnccl-net-" + entry + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

// All tables begin with their name.
const char* const* table_of(void* handle, int version, const char* of = kNetTable) {
    const std::string symbol = of + std::to_string(version);
    return static_cast<const char* const*>(::dlsym(handle, symbol.c_str()));
}

// "+", path and table versions, those of the tuner behind a "t", a line each, of the slimwire that
// `entry` opens; "-" and what is there instead.
std::string look_at(const std::string& entry) {
    void* handle = open_entry(entry);
    link_map* map = nullptr;
    if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) {
        const char* const why = ::dlerror();
        return std::string("-") + (why != nullptr ? why : entry.c_str());
    }
    std::string text = "+\n" + std::string(map->l_name) + '\n';
    bool ours = false;
    for (int version = kOldestTable; version <= kNewestTable; ++version) {
        if (const char* const* table = table_of(handle, version); table != nullptr) {
            ours = ours || std::string(*table) == kTableName;
            text += std::to_string(version) + '\n';
        }
    }
    for (int version = kOldestTuner; version <= kNewestTuner; ++version) {
        text += table_of(handle, version, kTunerTable) != nullptr
                    ? kTuner + std::to_string(version) + '\n'
                    : "";
    }
    return ours ? text : "-" + std::string(map->l_name) + " is another library";
}

std::string g_warning;
constexpr char kWarned = '!';  // begins a line that is no device

void note_warning(net::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
    if (level == net::kLogWarn && g_warning.empty()) {
        char line[4096];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(line, sizeof line, format, arguments);
        va_end(arguments);
        g_warning = line;
    }
}

// Its devices, a line each behind a "+" line, and then a line with what it warned of; else a "-"
// line with why it does not start.
std::string start(const std::string& path, const Environment& environment) {
    for (const auto& [name, value] : environment.values()) {
        ::setenv(name.c_str(), value.c_str(), 0);
    }
    ::unsetenv("SLIMWIRE_REPORT");  // nothing is to be reported of this start
    ::setenv("SLIMWIRE_POLICY", "[runtime]\nsummary = false\n", 1);
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto* net = handle == nullptr
                          ? nullptr
                          : reinterpret_cast<const net::NetV12*>(table_of(handle, kNewestTable));
    if (net == nullptr) {
        return fmt::format("-it exports no table of version {}: another version's", kNewestTable);
    }
    net::NetCommConfigV12 config{-1};
    void* context = nullptr;
    int devices = 0;
    if (net->init(&context, 0, &config, note_warning, nullptr) != ncclSuccess ||
        net->devices(&devices) != ncclSuccess) {
        return "-" + (g_warning.empty() ? "it says nothing why" : g_warning);
    }
    std::string text = "+";
    for (int i = 0; i < devices; ++i) {
        net::NetPropertiesV12 properties{};
        if (net->get_properties(i, &properties) == ncclSuccess) {
            text += fmt::format("\n{}", properties.name);
        }
    }
    return g_warning.empty() ? text : text + "\n" + kWarned + g_warning;
}

// What the plugin says of this variable alone; "+": accepted.
std::string check_alone(const Environment& environment, const std::string& variable) {
    for (const auto& [name, value] : environment.values()) {
        if (name.starts_with("SLIMWIRE_") && name != variable) {
            ::unsetenv(name.c_str());
        }
    }
    const auto settings = net::read_engine_settings();
    return settings.ok() ? "+" : settings.status().message();
}

// --- Here

// With what NCCL's own files set: those that the environment has not.
Environment as_nccl_has(Environment environment) {
    const std::string named = environment.text("NCCL_CONF_FILE");
    for (const std::string& path :
         {named.empty() ? environment.text("HOME") + "/.nccl.conf" : named,
          std::string("/etc/nccl.conf")}) {
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) {
            line.erase(line.find_last_not_of('\r') + 1);
            const size_t equals = line.find('=');
            const std::string name = line.substr(0, equals);
            if (name.starts_with("NCCL_") && equals != line.npos &&
                environment.get(name) == nullptr) {
                environment.set(name, line.substr(equals + 1));
            }
        }
    }
    return environment;
}

void examine_variables(const Environment& environment, Diagnosis* diagnosis) {
    for (const auto& [name, value] : environment.values()) {
        if (!name.starts_with(kPrefix) || value.empty()) {
            continue;
        }
        const std::string said =
            ask_in_child([&, &name = name] { return check_alone(environment, name); });
        const std::string error = said == "+" ? "" : said.empty() ? "it cannot be checked" : said;
        if (!error.empty()) {
            diagnosis->add(Severity::kError, error);
        }
        diagnosis->net.variables.push_back({name, value, error});
    }
}

// Looks at `entry` in a child: path and tables of the slimwire that it is; else why it is none.
std::string look(const std::string& entry, NetDiagnosis* net, std::string* path) {
    const std::string answer = ask_in_child([&] { return look_at(entry); });
    if (!answer.starts_with("+")) {
        return answer.empty() ? entry + ": opening it crashes" : answer.substr(1);
    }
    const std::vector<std::string> lines = split_list(answer, "\n");
    *path = lines[1];
    net->tables.clear();
    net->tuners.clear();
    for (size_t i = 2; i < lines.size(); ++i) {
        const bool tuner = lines[i].front() == kTuner;
        (tuner ? net->tuners : net->tables).push_back(std::stoi(lines[i].substr(tuner ? 1 : 0)));
    }
    return {};
}

// Which slimwire NCCL_NET_PLUGIN leads to.
void examine_list(const std::string& folder, Diagnosis* diagnosis) {
    NetDiagnosis& net = diagnosis->net;
    const std::vector<std::string> entries =
        split_list(net.asked.empty() ? kDefaultPlugin : net.asked.c_str(), ",");
    for (size_t i = 0; i < entries.size() && net.path.empty(); ++i) {
        const std::string why = look(entries[i], &net, &net.path);
        if (!net.path.empty() && i > 0) {
            diagnosis->add(Severity::kNote,
                           fmt::format("NCCL_NET_PLUGIN={}: NCCL tries {} before slimwire",
                                       net.asked, entries[0]));
        }
        if (net.path.empty() && entries[i].find(kTableName) != std::string::npos) {
            diagnosis->add(
                Severity::kError,
                fmt::format("NCCL_NET_PLUGIN={}: {}; set LD_LIBRARY_PATH={}, or NCCL_NET_PLUGIN "
                            "to the library's path",
                            net.asked, why,
                            folder.empty() ? "the folder of libnccl-net-slimwire.so" : folder));
        }
    }
    std::error_code error;
    if (!net.path.empty() && !net.library.empty() &&
        !std::filesystem::equivalent(net.path, net.library, error)) {
        diagnosis->add(
            Severity::kWarning,
            fmt::format("{} leads to {}, not to {} beside this program",
                        net.asked.empty() ? kDefaultPlugin : "NCCL_NET_PLUGIN=" + net.asked,
                        net.path, net.library));
    }
}

void examine_table(Diagnosis* diagnosis) {
    NetDiagnosis& net = diagnosis->net;
    for (const FoundLibrary& library : diagnosis->libraries) {
        if (library.name.rfind("libnccl", 0) != 0 || library.version.empty()) {
            continue;
        }
        const int newest = newest_net_table(library.version);
        for (const int version : net.tables) {
            net.table = version <= newest ? version : net.table;
        }
        if (net.table == 0 && !net.path.empty()) {
            diagnosis->add(
                Severity::kError,
                fmt::format("NCCL {} takes none of the net plugin's tables (v{} to v{}): "
                            "it needs NCCL 2.20 or newer",
                            library.version, kOldestTable, kNewestTable));
        }
        return;
    }
}

void examine_start(const Environment& environment, Diagnosis* diagnosis) {
    NetDiagnosis& net = diagnosis->net;
    const std::string chosen = environment.text("NCCL_NET");
    if (strcasecmp(environment.text("SLIMWIRE_MODE").c_str(), "off") == 0) {
        if (strcasecmp(chosen.c_str(), kTableName) == 0) {
            diagnosis->add(Severity::kError,
                           fmt::format("SLIMWIRE_MODE=off with NCCL_NET={}: the net plugin does "
                                       "not start, and NCCL takes no other network; unset NCCL_NET",
                                       chosen));
        } else {
            diagnosis->add(Severity::kNote, "SLIMWIRE_MODE=off: the net plugin does not start");
        }
        return;
    }
    if (!chosen.empty() && strcasecmp(chosen.c_str(), kTableName) != 0) {
        diagnosis->add(Severity::kWarning,
                       fmt::format("NCCL_NET={}: NCCL uses that network and not the net plugin; "
                                   "NCCL_NET=slimwire chooses it",
                                   chosen));
    } else if (chosen.empty()) {
        diagnosis->add(Severity::kNote,
                       "without NCCL_NET=slimwire, NCCL goes on with another network when the net "
                       "plugin does not start");
    }
    if (std::any_of(net.variables.begin(), net.variables.end(),
                    [](const NetVariable& variable) { return !variable.error.empty(); })) {
        return;  // said already
    }
    const std::string answer = ask_in_child([&] { return start(net.path, environment); });
    net.started = answer.starts_with("+");
    if (net.started) {
        for (std::string& line : split_list(std::string_view(answer).substr(1), "\n")) {
            if (line.front() == kWarned) {
                diagnosis->add(Severity::kWarning, line.substr(1));
            } else {
                net.devices.push_back(std::move(line));
            }
        }
    } else {
        diagnosis->add(Severity::kError,
                       answer.empty()
                           ? fmt::format("{} crashed or did not start within 10 s", net.path)
                           : answer.substr(1));
    }
}

}  // namespace

int newest_net_table(const std::string& nccl_version) noexcept {
    int major = 0, minor = 0;
    if (std::sscanf(nccl_version.c_str(), "%d.%d", &major, &minor) != 2) {
        return 0;
    }
    const int number = major * 100 + minor;
    struct Row {
        int from, table;
    };
    constexpr Row kRows[] = {{230, 12}, {228, 11}, {226, 10}, {224, 9}, {220, 8}};
    const auto* const row = std::find_if(std::begin(kRows), std::end(kRows),
                                         [&](const Row& one) { return number >= one.from; });
    return row != std::end(kRows) ? row->table : 0;
}

void examine_net(const std::filesystem::path& library,
                 const Environment& job,
                 Diagnosis* diagnosis) {
    const Environment environment = as_nccl_has(job);
    NetDiagnosis& net = diagnosis->net;
    net.library = library.string();
    net.asked = environment.text("NCCL_NET_PLUGIN");
    if (!net.library.empty()) {
        std::string path;
        if (const std::string why = look(net.library, &net, &path); !why.empty()) {
            diagnosis->add(Severity::kWarning, why);
        }
    }
    examine_variables(environment, diagnosis);
    examine_list(library.parent_path().string(), diagnosis);
    examine_table(diagnosis);
    if (!net.path.empty()) {
        examine_start(environment, diagnosis);
        return;
    }
    if (net.asked.find(kTableName) != std::string::npos) {
        return;  // said already
    }
    if (strcasecmp(environment.text("NCCL_NET").c_str(), kTableName) == 0) {
        diagnosis->add(Severity::kError,
                       "NCCL_NET=slimwire: NCCL takes no other network, and it finds none of that "
                       "name; set NCCL_NET_PLUGIN=slimwire, or unset NCCL_NET");
    } else if (!net.variables.empty()) {
        diagnosis->add(Severity::kWarning,
                       "SLIMWIRE_NET_* variables are set, but NCCL_NET_PLUGIN does not name "
                       "slimwire: nothing reads them");
    }
}

}  // namespace slimwire::cli
