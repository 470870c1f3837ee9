// Sends the claims of all communicators of the process, over one connection a server that lives
// while answers are awaited and a moment longer, and gives the answers out. Its thread begins with
// the first claim; a fork has none of its parent's threads and gets a sender of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/communicator/agreement/type_claims.h"
#include "collectives/communicator/agreement/wire.h"

namespace slimwire {

class ClaimSender {
  public:
    using ClaimsRef = std::shared_ptr<TypeClaims>;

    static ClaimSender& instance();

    uint32_t next_number() noexcept { return numbers_.fetch_add(1) + 1; }
    // An answer to `replaced`, the kind's claim before, stands for both; 0: there is none.
    void post(ClaimsRef claims,
              const agreement_wire::ClaimRecord& record,
              uint64_t patience_us,
              uint32_t replaced = 0);
    // From now on the thread asks about its calls in graphs, of which one is counted: it looks at
    // once, and not again where there is none.
    void watch(const ClaimsRef& claims);

  private:
    struct Posted {
        ClaimsRef claims;
        agreement_wire::ClaimRecord record;
        uint64_t patience_us;
        uint32_t replaced;
    };
    struct Server {
        AgreementAddress address;  // its token is of no meaning here
        int socket = -1;
        bool dead = false;
        std::string bytes = {};
        std::map<uint32_t, Posted> open = {};
        uint64_t used_us = 0;
    };

    bool start();
    std::vector<ClaimsRef> all();
    void serve();
    void send(Posted posted);
    void hear(Server* server);
    static void close_connection(Server* server);
    static void fail(Server* server);

    const pid_t pid_ = getpid();
    std::atomic<uint32_t> numbers_{0};
    std::mutex mutex_;  // of the next four
    std::vector<Posted> posted_;
    std::vector<std::weak_ptr<TypeClaims>> all_;
    bool started_ = false;
    int wake_ = -1;
    std::vector<Server> servers_;  // of the thread
};

}  // namespace slimwire
