#include "plugin/net/wrapped/inner_table.h"

#include <dlfcn.h>

#include <climits>
#include <mutex>
#include <set>
#include <vector>

#include "plugin/net/abi/net.h"

namespace slimwire::net {
namespace {

constexpr int kMostGrouped = 16;  // receives in one call; NCCL's own limit is 8

// What a table's get_properties() fills.
template <class Properties>
Properties filled_by(ncclResult_t (*)(int, Properties*));

// What version 10 takes at each connect.
struct OldContext {
    int traffic_class;
};

// Tables without contexts that have been started: once in a process.
struct Started {
    std::mutex mutex;
    std::set<const void*> tables;
};
Started& started() {
    static Started& all = *new Started;
    return all;
}

template <class Net, int kVersion>
class TableOf final : public InnerTable {
  public:
    explicit TableOf(const Net* net) : net_(net) {}

    [[nodiscard]] int version() const noexcept override { return kVersion; }
    [[nodiscard]] const char* name() const noexcept override { return net_->name; }

    ncclResult_t init(void** context,
                      uint64_t comm_id,
                      int traffic_class,
                      DebugLogger log) override {
        if constexpr (kVersion >= 11) {
            NetCommConfigV11 config{traffic_class};
            return net_->init(context, comm_id, &config, log, nullptr);
        } else {
            static_cast<void>(comm_id);
            const std::lock_guard lock(started().mutex);
            if (started().tables.count(net_) == 0) {
                ncclResult_t result;
                if constexpr (kVersion == 10) {
                    result = net_->init(log, nullptr);
                } else {
                    result = net_->init(log);
                }
                if (result != ncclSuccess) {
                    return result;
                }
                started().tables.insert(net_);
            }
            *context = new OldContext{traffic_class};
            return ncclSuccess;
        }
    }

    ncclResult_t finalize(void* context) override {
        if constexpr (kVersion >= 11) {
            return net_->finalize != nullptr ? net_->finalize(context) : ncclSuccess;
        } else {
            delete static_cast<OldContext*>(context);
            return ncclSuccess;
        }
    }

    ncclResult_t devices(int* count) override { return net_->devices(count); }

    ncclResult_t properties(int device, WireDevice* said, NetDeviceType* type) override {
        decltype(filled_by(Net::get_properties)) given{};
        const ncclResult_t result = net_->get_properties(device, &given);
        if (result != ncclSuccess) {
            return result;
        }
        *type = given.device_type;
        *said = {.name = given.name != nullptr ? given.name : net_->name,
                 .pci_path = given.pci_path != nullptr ? given.pci_path : "",
                 .guid = given.guid,
                 .reg_is_global = given.reg_is_global != 0,
                 .speed_mbps = given.speed_mbps > 0 ? given.speed_mbps : WireDevice().speed_mbps,
                 .port = given.port,
                 .latency_us = given.latency_us,
                 .max_connections = given.max_comms};
        if constexpr (kVersion >= 9) {
            if (given.max_p2p_bytes > 0) {
                said->max_message_bytes = given.max_p2p_bytes;
            }
        }
        if constexpr (kVersion >= 12) {
            said->rail_id = given.rail_id;
            said->plane_id = given.plane_id;
        }
        return ncclSuccess;
    }

    ncclResult_t listen(void* context, int device, void* handle, void** listen_comm) override {
        if constexpr (kVersion >= 11) {
            return net_->listen(context, device, handle, listen_comm);
        } else {
            return net_->listen(device, handle, listen_comm);
        }
    }

    ncclResult_t connect(void* context, int device, void* handle, void** send_comm) override {
        NetDeviceHandle* offload = nullptr;
        if constexpr (kVersion >= 11) {
            return net_->connect(context, device, handle, send_comm, &offload);
        } else if constexpr (kVersion == 10) {
            NetCommConfigV10 config{static_cast<OldContext*>(context)->traffic_class};
            return net_->connect(device, &config, handle, send_comm, &offload);
        } else {
            return net_->connect(device, handle, send_comm, &offload);
        }
    }

    ncclResult_t accept(void* listen_comm, void** recv_comm) override {
        NetDeviceHandle* offload = nullptr;
        return net_->accept(listen_comm, recv_comm, &offload);
    }

    ncclResult_t reg_mr(void* comm, void* data, size_t bytes, int type, void** mhandle) override {
        return net_->reg_mr(comm, data, bytes, type, mhandle);
    }
    ncclResult_t dereg_mr(void* comm, void* mhandle) override {
        return net_->dereg_mr(comm, mhandle);
    }

    ncclResult_t isend(void* send_comm,
                       void* data,
                       size_t bytes,
                       int tag,
                       void* mhandle,
                       void** request) override {
        if constexpr (kVersion >= 10) {
            return net_->isend(send_comm, data, bytes, tag, mhandle, nullptr, request);
        } else if constexpr (kVersion == 9) {
            return net_->isend(send_comm, data, bytes, tag, mhandle, request);
        } else {
            if (bytes > INT_MAX) {
                return ncclInvalidArgument;
            }
            return net_->isend(send_comm, data, static_cast<int>(bytes), tag, mhandle, request);
        }
    }

    ncclResult_t irecv(void* recv_comm,
                       int count,
                       void** data,
                       const size_t* bytes,
                       const int* tags,
                       void** mhandles,
                       void** request) override {
        if (count < 1 || count > kMostGrouped) {
            return ncclInvalidArgument;
        }
        // The tables' parameters are not const; plugins get copies.
        int own_tags[kMostGrouped];
        size_t sizes[kMostGrouped];
        [[maybe_unused]] int short_sizes[kMostGrouped];
        for (int i = 0; i < count; ++i) {
            own_tags[i] = tags[i];
            sizes[i] = bytes[i];
            if constexpr (kVersion == 8) {
                if (bytes[i] > INT_MAX) {
                    return ncclInvalidArgument;
                }
                short_sizes[i] = static_cast<int>(bytes[i]);
            }
        }
        if constexpr (kVersion >= 10) {
            void* phandles[kMostGrouped] = {};
            return net_->irecv(recv_comm, count, data, sizes, own_tags, mhandles, phandles,
                               request);
        } else if constexpr (kVersion == 9) {
            return net_->irecv(recv_comm, count, data, sizes, own_tags, mhandles, request);
        } else {
            *request = nullptr;
            return net_->irecv(recv_comm, count, data, short_sizes, own_tags, mhandles, request);
        }
    }

    ncclResult_t test(void* request, int* done, int* bytes) override {
        return net_->test(request, done, bytes);
    }
    ncclResult_t close_send(void* send_comm) override { return net_->close_send(send_comm); }
    ncclResult_t close_recv(void* recv_comm) override { return net_->close_recv(recv_comm); }
    ncclResult_t close_listen(void* listen_comm) override {
        return net_->close_listen(listen_comm);
    }

  private:
    const Net* net_;
};

// `newer` where there is one.
template <class Net, int kVersion>
std::unique_ptr<InnerTable> look_up(void* library,
                                    const char* symbol,
                                    int only_version,
                                    std::unique_ptr<InnerTable> newer = nullptr) {
    if (newer != nullptr || (only_version != 0 && only_version != kVersion)) {
        return newer;
    }
    const auto* net = static_cast<const Net*>(dlsym(library, symbol));
    return net != nullptr ? std::make_unique<TableOf<Net, kVersion>>(net) : nullptr;
}

// As NCCL: a name without a folder that is not lib*.so is short for libnccl-net-<name>.so.
std::vector<std::string> candidates(const std::string& library) {
    std::vector<std::string> names{library};
    const bool is_file = library.starts_with("lib") && library.find(".so") != std::string::npos;
    if (library.find('/') == std::string::npos && !is_file) {
        names.push_back("libnccl-net-" + library + ".so");
    }
    return names;
}

}  // namespace

Result<std::unique_ptr<InnerTable>> InnerTable::open(const std::string& library, int only_version) {
    void* handle = nullptr;
    std::string why;
    for (const std::string& name : candidates(library)) {
        handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) {
            break;
        }
        const char* const error = dlerror();
        why +=
            std::string(why.empty() ? "" : "; ") + (error != nullptr ? error : "cannot be opened");
    }
    if (handle == nullptr) {
        return Status(Code::kNotFound, "net plugin '" + library + "': " + why);
    }
    auto table = look_up<NetV12, 12>(handle, kNetPluginSymbolV12, only_version);
    table = look_up<NetV11, 11>(handle, kNetPluginSymbolV11, only_version, std::move(table));
    table = look_up<NetV10, 10>(handle, kNetPluginSymbolV10, only_version, std::move(table));
    table = look_up<NetV9, 9>(handle, kNetPluginSymbolV9, only_version, std::move(table));
    table = look_up<NetV8, 8>(handle, kNetPluginSymbolV8, only_version, std::move(table));
    if (table == nullptr) {
        dlclose(handle);
        return Status(Code::kNotFound,
                      "net plugin '" + library + "' exports no ncclNetPlugin_v" +
                          (only_version != 0 ? std::to_string(only_version)
                                             : std::to_string(kNewestTable) + " to _v" +
                                                   std::to_string(kOldestTable)));
    }
    return table;
}

}  // namespace slimwire::net
