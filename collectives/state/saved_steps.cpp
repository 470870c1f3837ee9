#include "collectives/state/saved_steps.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

namespace slimwire {
namespace {

std::optional<Saving> saving_of(const std::string& name) {
    unsigned long long step = 0, run = 0;
    int ranks = 0;
    if (std::sscanf(name.c_str(), "step-%llu.run-%llu.of-%d", &step, &run, &ranks) != 3) {
        return std::nullopt;
    }
    const Saving saving{run, step, ranks};
    return saving.name() == name ? std::optional(saving) : std::nullopt;
}

}  // namespace

Status make_folder(const std::string& path) {
    if ((::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) ||
        ::access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
        return {Code::kSystemError, "folder '" + path +
                                        "' of SLIMWIRE_STATE: " + std::strerror(errno) +
                                        "; accepted: one that can be written, or made"};
    }
    return {};
}

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    if (DIR* const opened = ::opendir(folder.c_str())) {
        while (const dirent* const entry = ::readdir(opened)) {
            names.emplace_back(entry->d_name);
        }
        ::closedir(opened);
    }
    return names;
}

std::string Saving::name() const {
    return "step-" + std::to_string(step) + ".run-" + std::to_string(run) + ".of-" +
           std::to_string(ranks);
}

std::string Saving::path(const std::string& folder, int rank) const {
    return folder + "/" + name() + "/state." + std::to_string(rank);
}

bool Saving::complete(const std::string& folder) const {
    const std::vector<std::string> names = names_in(folder + "/" + name());
    for (int rank = 0; rank < ranks; ++rank) {
        if (std::find(names.begin(), names.end(), "state." + std::to_string(rank)) == names.end()) {
            return false;
        }
    }
    return true;
}

std::vector<Saving> savings_in(const std::string& folder) {
    std::vector<Saving> savings;
    for (const std::string& name : names_in(folder)) {
        if (const std::optional<Saving> saving = saving_of(name)) {
            savings.push_back(*saving);
        }
    }
    std::sort(savings.begin(), savings.end(), std::greater());
    return savings;
}

Status make_room(const std::string& folder,
                 const Saving& next,
                 int rank,
                 size_t* waiting,
                 const std::optional<Saving>& from) {
    const std::vector<Saving> savings = savings_in(folder);
    auto whole = std::find_if(savings.begin(), savings.end(), [&](const Saving& one) {
        return one.run <= next.run && one.complete(folder);
    });
    if (from.has_value() && whole != savings.end() && whole->run < next.run) {
        const auto began = std::find(savings.begin(), savings.end(), *from);
        whole = began != savings.end() && began->complete(folder) ? began : whole;
    }
    const bool some = whole != savings.end();
    const std::string own = "state." + std::to_string(rank);
    size_t newer = 0;
    for (const Saving& one : savings) {
        // Of one step there may be some for other numbers of ranks.
        const bool stays = some && one.run == whole->run && one.step == whole->step;
        // Of what is newer slower ranks may still write their files.
        const bool old = one.run < next.run || (some && one < *whole);
        if (one == next || stays || one.run > next.run) {
            continue;
        }
        if (!old) {
            newer += ::access(one.path(folder, rank).c_str(), F_OK) == 0 ? 1 : 0;
            continue;
        }
        const std::string place = folder + "/" + one.name();
        for (const std::string& name : names_in(place)) {
            const bool all = rank == 0 && ((one.run < next.run && name.starts_with("state.")) ||
                                           name.starts_with("weights"));
            // With what a process that was killed left of it.
            if (all || name == own || name.starts_with(own + ".")) {
                (void)::unlink((place + "/" + name).c_str());
            }
        }
        (void)::rmdir(place.c_str());  // where it is empty
    }
    if (waiting != nullptr) {
        *waiting = newer;
    }
    SLIMWIRE_TRY(make_folder(folder));
    SLIMWIRE_TRY(make_folder(folder + "/" + next.name()));
    if (const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        opened >= 0) {
        (void)::fsync(opened);
        ::close(opened);
    }
    return {};
}

}  // namespace slimwire
