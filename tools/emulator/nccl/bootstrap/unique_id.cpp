#include "tools/emulator/nccl/bootstrap/unique_id.h"

#include <pthread.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "tools/emulator/nccl/bootstrap/doorkeeper.h"
#include "tools/emulator/nccl/bootstrap/log.h"

namespace slimwire::emu {
namespace {

constexpr uint32_t kProtocol = 1;
constexpr int kJoinConnectTimeoutMs = 3000;  // it listens before its address is known
constexpr int kJoinTimeoutMs = 600'000;
constexpr int kJoinSendTimeoutMs = 10'000;
constexpr uint64_t kTellLateNs = 60'000'000'000;

struct IdLayout {
    uint64_t token;
    SocketAddress address;
};
static_assert(offsetof(IdLayout, address) == 8);
constexpr size_t kIdBytes = offsetof(IdLayout, address) + sizeof(SocketAddress);

struct Join {
    uint64_t token;
    uint32_t protocol;
    int32_t rank;
    int32_t nranks;
    int32_t reserved;
    RankInfo info;
};

struct Verdict {
    uint64_t token;    // of the new communicator; 0 when refused
    uint32_t nranks;   // RankInfo entries that follow, or 0
    char reason[244];  // why it was refused
};

// The thread behind an id: collects the joins of one communicator, then answers all and ends. Where
// there is no communicator to be, those who join later are told, too, for a while.
class Root {
  public:
    Root(Socket listener, uint64_t token) : door_(std::move(listener)), token_(token) {}

    void run() {
        uint64_t until_ns = 0;
        while (true) {
            std::vector<int> watched;
            for (const auto& member : members_) {
                if (member) {
                    watched.push_back(member->socket.fd());
                }
            }
            door_.wait(1000, watched);
            for (Guest<Join>& guest : door_.arrivals()) {
                admit(std::move(guest));
            }
            for (size_t rank = 0; rank < members_.size() && reason_.empty(); ++rank) {
                if (members_[rank] && hung_up(members_[rank]->socket)) {
                    reason_ = "rank " + std::to_string(rank) + " ended during initialisation";
                }
            }
            if (reason_.empty() && (members_.empty() || joined_ < members_.size())) {
                continue;
            }
            answer_all();
            until_ns = until_ns == 0 ? now_ns() + kTellLateNs : until_ns;
            if (answered_ >= members_.size() || now_ns() > until_ns) {
                return;
            }
        }
    }

  private:
    void admit(Guest<Join> guest) {
        const Join& join = guest.greeting;
        if (join.token != token_ || join.protocol != kProtocol) {
            log_info("bootstrap: a stray connection was refused");
            return;
        }
        if (members_.empty() && join.nranks > 0) {
            members_.resize(static_cast<size_t>(join.nranks));
        }
        const auto rank = static_cast<size_t>(join.rank);
        if (!reason_.empty()) {
            refused_.push_back(std::move(guest.socket));
            return;
        }
        if (join.nranks != static_cast<int>(members_.size())) {
            reason_ = "ranks disagree about their number: " + std::to_string(members_.size()) +
                      " and " + std::to_string(join.nranks) + " (rank " +
                      std::to_string(join.rank) + ")";
        } else if (rank >= members_.size() || members_[rank]) {
            reason_ = "rank " + std::to_string(join.rank) + " joined twice";
        } else {
            members_[rank] = std::move(guest);
            ++joined_;
            return;
        }
        refused_.push_back(std::move(guest.socket));
    }

    void answer_all() {
        Verdict verdict{};
        std::vector<RankInfo> ranks;
        if (reason_.empty()) {
            verdict.token = random_u64() | 1;
            verdict.nranks = static_cast<uint32_t>(members_.size());
            for (const auto& member : members_) {
                ranks.push_back(member->greeting.info);
            }
        } else {
            snprintf(verdict.reason, sizeof verdict.reason, "%s", reason_.c_str());
        }
        for (auto& member : members_) {
            if (member) {
                answer(member->socket, verdict, ranks);
                member.reset();
                ++answered_;
            }
        }
        for (const Socket& socket : refused_) {
            answer(socket, verdict, ranks);
            ++answered_;
        }
        refused_.clear();
    }

    static void answer(const Socket& socket,
                       const Verdict& verdict,
                       const std::vector<RankInfo>& ranks) {
        // A member that is gone by now is noticed by the others when they connect to it.
        if (send_all(socket.fd(), &verdict, sizeof verdict, kJoinSendTimeoutMs).ok()) {
            (void)send_all(socket.fd(), ranks.data(), ranks.size() * sizeof(RankInfo),
                           kJoinSendTimeoutMs)
                .ok();
        }
    }

    Doorkeeper<Join> door_;
    uint64_t token_;
    std::vector<std::optional<Guest<Join>>> members_;
    size_t joined_ = 0;
    std::string reason_;
    std::vector<Socket> refused_;
    size_t answered_ = 0;
};

}  // namespace

Status make_unique_id(ncclUniqueId* out) {
    IdLayout layout{};
    layout.token = random_u64() | 1;
    SLIMWIRE_TRY_ASSIGN(Socket listener, listen_on_bootstrap_interface(&layout.address));
    auto root = std::make_unique<Root>(std::move(listener), layout.token);
    std::thread([root = std::move(root)] {
        pthread_setname_np(pthread_self(), "emu-nccl-root");
        root->run();
    }).detach();
    memset(out, 0, sizeof *out);
    memcpy(out, &layout, kIdBytes);
    return {};
}

uint64_t unique_id_token(const ncclUniqueId& id) noexcept {
    uint64_t token = 0;
    memcpy(&token, &id, sizeof token);
    return token;
}

Result<Membership> join_at_root(const ncclUniqueId& id,
                                int nranks,
                                int rank,
                                const RankInfo& self) {
    IdLayout layout{};
    memcpy(&layout, &id, kIdBytes);
    const int family = layout.address.any.sa_family;
    if (layout.token == 0 || (family != AF_INET && family != AF_INET6)) {
        return Status(Code::kInvalidArgument,
                      "this unique id was not made by ncclGetUniqueId of the emulated NCCL");
    }
    SLIMWIRE_TRY_ASSIGN(Socket root, connect_to(layout.address, kJoinConnectTimeoutMs));
    const Join join{layout.token, kProtocol, rank, nranks, 0, self};
    SLIMWIRE_TRY(send_all(root.fd(), &join, sizeof join, kJoinSendTimeoutMs));
    Verdict verdict{};
    SLIMWIRE_TRY(receive_all(root.fd(), &verdict, sizeof verdict, kJoinTimeoutMs));
    if (verdict.token == 0) {
        verdict.reason[sizeof verdict.reason - 1] = '\0';
        const bool usage =
            strncmp(verdict.reason, "ranks", 5) == 0 || strstr(verdict.reason, "twice") != nullptr;
        return Status(usage ? Code::kInvalidUsage : Code::kRemoteError,
                      std::string("bootstrap: ") + verdict.reason);
    }
    Membership membership;
    membership.token = verdict.token;
    membership.ranks.resize(verdict.nranks);
    SLIMWIRE_TRY(receive_all(root.fd(), membership.ranks.data(),
                             membership.ranks.size() * sizeof(RankInfo), kJoinSendTimeoutMs));
    return membership;
}

}  // namespace slimwire::emu
