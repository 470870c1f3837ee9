// Agreement between the ranks of a new communicator, out of band (DESIGN 3.2): the process that
// makes the unique id listens; its address travels in the id's unused tail; each rank says hello
// after the real creation succeeded; one answer reaches all. Nothing here is on the path of a call.
//
// The server is one thread for the whole process, started with the first id; it lives until exit
// and blocks all signals. Clients block their caller for at most the timeout and a second.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "topology/machine/comm_links.h"

namespace slimwire {

inline constexpr uint32_t kAgreementVersion = 19;

// Who a rank is. After the agreement all ranks tell it each other over the new communicator itself
// (gather_members), because the root would have to send ranks^2 of them.
struct Member {
    RankIdentity place;
    uint64_t process = 0;  // distinguishes processes of one host
    RankPlace links;
    uint64_t registered = 0;     // RegisteredParameters::hash(); 0: nothing, or no rule asks
    uint64_t name = 0;           // hash of what the program calls the communicator
    uint64_t parent_key = 0;     // of what it was split off
    uint64_t scratch_bytes = 0;  // that it has reserved
    uint64_t saved_run = 0;      // CommunicatorListener::saved_run()
    bool operator==(const Member&) const = default;
};
static_assert(sizeof(Member) == 120);

enum class Verdict : uint32_t { kGo = 0, kNative = 1, kError = 2 };

struct Hello {
    int32_t ranks = 0;
    int32_t rank = 0;
    uint64_t config_hash = 0;
    uint32_t process = 0;  // id of the rank's process; filled in where the hello is sent
    // This rank cannot or does not want to take part: the others go native.
    std::string native_reason;
    // This rank's configuration is wrong: every rank gets an error with this text.
    std::string error;
    // What config_hash is of, in words KEY=VALUE and lines (compared_text); may be cut.
    std::string settings;
};

struct Agreement {
    Verdict verdict = Verdict::kNative;
    std::string text;  // why, for kNative and kError
};

// Address of the server of one communicator, as it stands in bytes 64..127 of a unique id.
struct AgreementAddress {
    uint8_t address[16] = {};  // IPv4 in the first four bytes, or IPv6
    uint16_t port = 0;         // host order
    uint8_t family = 0;        // 4 or 6
    uint32_t scope = 0;  // of a link-local IPv6 address: the interface's index, as NCCL has it
    uint64_t token = 0;
    bool operator==(const AgreementAddress&) const = default;
};

// Writes the tail; false, and nothing written, when bytes 64..127 are in use.
bool write_id_tail(const AgreementAddress& address, ncclUniqueId* id) noexcept;
enum class TailState : uint8_t { kAbsent, kPresent, kTorn };
// kTorn: our mark is there but the checksum does not hold; treated as absent, with a warning.
TailState read_id_tail(const ncclUniqueId& id, AgreementAddress* address) noexcept;

// Which setting two ranks differ in and the two values, as " in seed: 1 and 2"; empty where what
// was told is the same.
[[nodiscard]] std::string first_difference(const std::string& one, const std::string& other);

// The one answer to a complete or expired set of hellos (index = arrival order). Pure. `missing`
// names ranks that did not come in `timeout_us`; empty when all came.
Agreement decide(const std::vector<Hello>& hellos, int ranks, uint64_t timeout_us);

// Registers a new communicator with the server of this process, which it starts if needed: a fresh
// random token and an address the other ranks can reach: that of the first interface of the list
// `ifname` when it is not empty, else the address NCCL itself put into the id (bytes 8..), else
// loopback. `hellos`: ranks say hello to it; the first call says how long one waits for the others.
Result<AgreementAddress> open_agreement(uint64_t timeout_us,
                                        const ncclUniqueId& id,
                                        const std::string& ifname,
                                        bool hellos = true);

// A hello that is under way. Sending and waiting are apart, because one thread may bring up many
// ranks.
class AgreementClient {
  public:
    AgreementClient() = default;
    AgreementClient(AgreementClient&& other) noexcept;
    AgreementClient& operator=(AgreementClient&& other) noexcept;
    ~AgreementClient();

    // Asked every 50 ms of a wait; true ends it. May be empty.
    using Stop = std::function<bool()>;

    // Connects and sends; kRemoteError when the server cannot be reached (then it never counts us
    // in, so going native is what the others do too).
    Status send(const AgreementAddress& address,
                const Hello& hello,
                uint64_t timeout_us,
                const Stop& stop = {});
    // Waits for the answer. An answer that never comes after the hello was sent is an error: what
    // the others decided cannot be known.
    Result<Agreement> wait(uint64_t timeout_us, const Stop& stop);

  private:
    int socket_ = -1;
};

}  // namespace slimwire
