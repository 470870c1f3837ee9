// The savings in the folder of SLIMWIRE_STATE, which all ranks of a job share: of each a folder
// "step-S.run-R.of-N" with a file "state.K" of every rank K below N. A file comes there whole
// (write_state), so a saving is complete when all its files are there. Each rank removes its own
// files of savings before the newest complete one, which therefore stays whatever ends the job, as
// newer ones do that slower ranks still write.
// Knows names only, not what files hold. One thread of a rank at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

struct Saving {
    // How often jobs began with this folder, or went back to an earlier step: what was saved after
    // that is newer.
    uint64_t run = 0;
    uint64_t step = 0;
    int ranks = 0;

    auto operator<=>(const Saving&) const = default;  // newer is greater
    [[nodiscard]] std::string name() const;
    // Of the rank's file.
    [[nodiscard]] std::string path(const std::string& folder, int rank) const;
    // Whether the files of all ranks are there.
    [[nodiscard]] bool complete(const std::string& folder) const;
};

// Of what is in a folder, "." and ".." too; none where there is no such folder.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder);

// All that are there, the newest first; none where there is no such folder.
[[nodiscard]] std::vector<Saving> savings_in(const std::string& folder);

// Makes it where it is not there; an error where files cannot be written in it.
Status make_folder(const std::string& path);

// Makes the folder of `next`, and removes this rank's files of savings that are older than the
// newest complete one, or of earlier runs; rank 0 removes what others left of those, too. What a
// later run saved is left alone. Until there is a complete one of this run `from`, which it began
// with, takes the place of the newest. `waiting`, if not null: how many newer ones have this rank's
// file and not those of all.
Status make_room(const std::string& folder,
                 const Saving& next,
                 int rank,
                 size_t* waiting = nullptr,
                 const std::optional<Saving>& from = {});

}  // namespace slimwire
