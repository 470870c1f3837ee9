// How `slimwire run` learns that slimwire reached a process of its job: the name of a socket that
// the job inherits. Linux's abstract names: no file, gone with its owner.
#pragma once

namespace slimwire {

inline constexpr char kRunSocketVariable[] = "SLIMWIRE_RUN_SOCKET";

// Sends a byte to the socket of that name, or, without `send`, asks whether it is there; never
// waits. False: nobody listens.
bool tell_run(const char* socket_name, bool send) noexcept;

}  // namespace slimwire
