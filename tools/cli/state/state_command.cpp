// `slimwire state`: what saved states hold, whether they are whole, what differs between two, and
// conversions to other ranks.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "codecs/base/status.h"
#include "collectives/state/atoms.h"
#include "collectives/state/conversion.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

// A saved state laid out for another number of ranks (`slimwire state convert`): its atoms, in one
// file that every rank reads, and takes its part of; where groups of ranks have some, in a file of
// each rank. Reads and writes piece by piece.

Status make_folder(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || !std::filesystem::is_empty(folder, error) || error) {
        return {Code::kInvalidUsage, "--out '" + folder + "' " +
                                         (error ? error.message() : "is not empty") +
                                         "; accepted: a new or empty folder"};
    }
    return {};
}

Status link(const std::string& file, const std::string& path) {
    std::error_code error;
    std::filesystem::create_hard_link(file, path, error);
    if (error && (std::filesystem::copy_file(file, path, error), error)) {
        return {Code::kSystemError, "'" + path + "': " + error.message()};
    }
    return {};
}

// Writes files state.0, state.1, ... of `ranks` ranks to the folder `to`, new or empty, with a note
// of what is left out. kInvalidUsage where the state is not whole.
Status convert_state(const std::string& from,
                     int ranks,
                     ConversionOptions options,
                     const std::string& to) {
    SLIMWIRE_TRY_ASSIGN(const SavedJob job, SavedJob::open(from));
    const auto of_groups = [](const StateComm& comm) { return comm.group.of_some(); };
    const bool groups =
        std::any_of(job.files().begin(), job.files().end(), [&](const StateReader& file) {
            const std::vector<StateComm>& comms = file.index().comms;
            return std::any_of(comms.begin(), comms.end(), of_groups);
        });
    std::set<std::string> noted;
    for (int rank = 0; rank < ranks; ++rank) {
        const std::string path = to + "/state." + std::to_string(rank);
        if (rank > 0 && !groups) {
            SLIMWIRE_TRY(link(to + "/state.0", path));
            continue;
        }
        options.own = groups ? rank : -1;
        options.heads = rank > 0;  // which has read all
        Conversion conversion(job, ranks, options);
        SLIMWIRE_TRY(conversion.plan());
        for (const std::string& one : conversion.left_out()) {
            if (noted.insert(one).second) {
                note("left out: " + one);
            }
        }
        if (rank == 0) {
            SLIMWIRE_TRY(make_folder(to));
        }
        SLIMWIRE_TRY(write_state(path, conversion.index(), [&](size_t i, uint64_t at, auto out) {
            return conversion.read(i, at, out);
        }));
    }
    return {};
}

constexpr size_t kWindow = 1 << 20;

struct StateOptions {
    std::string path, other, shards, sums;
    int ranks = 0;
    bool json = false, drop = false;
};

Json number_or_null(double value) {
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// The norm of what is owed, in the optimizer's units; NaN where that is not known.
Result<double> norm_of(const SavedJob& job, const Atom& atom, bool sums) {
    const uint64_t elems = atom.elems();
    if (elems == 0 || (sums && !atom.has_sums()) || atom.estimates()) {
        return std::nan("");
    }
    double square = 0;
    std::vector<double> values;
    for (uint64_t at = 0; at < elems; at += kWindow) {
        values.resize(std::min<uint64_t>(kWindow, elems - at));
        SLIMWIRE_TRY(job.owed(atom, sums, at, values));
        for (const double value : values) {
            square += value * value;
        }
    }
    return std::sqrt(square);
}

const char* name_of(const Atom& atom) {
    const AtomKind* const kind = atom_kind(atom.key.kind);
    return kind != nullptr ? kind->name : "unknown";
}

void put_key(const AtomKey& key, Json* record) {
    const RankGroup& group = key.group;
    (*record)["comm"] = group.of_all()    ? fmt::format("world {}", group.number)
                        : group.of_some() ? fmt::format("group {} of {} {}", group.index,
                                                        group.groups, group.number)
                                          : fmt::format("{:016x}", key.comm);
    (*record)["op"] = op_name(key.signature.op);
    (*record)["dtype"] = dtype_name(key.signature.dtype);
    (*record)["redop"] = redop_name(key.signature.redop);
    (*record)["count"] = key.signature.count;
    (*record)["root_or_peer"] = key.signature.root_or_peer;
    (*record)["path"] = fmt::format("{:016x}", key.path);
    (*record)["ordinal"] = key.ordinal;
    (*record)["name"] = key.name.empty() ? Json(nullptr) : Json(key.name);
}

std::string norm_text(double norm) {
    return std::isfinite(norm) ? fmt::format("{:.4g}", norm) : "-";
}

// With a note of each file of a folder that is left out or belongs to other ones. A file by itself
// lacks the other ranks.
Result<SavedJob> open_job(const std::string& path) {
    SLIMWIRE_TRY_ASSIGN(SavedJob job, SavedJob::open(path));
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
        note_all(job.strays());
    }
    return job;
}

Result<int> show(const StateOptions& options) {
    SLIMWIRE_TRY_ASSIGN(const SavedJob job, open_job(options.path));
    const StateIndex& index = job.files().front().index();
    if (job.left_out() > 0 && !options.json) {
        note("lacks " + left_out_text(job.left_out()));
    }
    if (options.json) {
        Json record = json_record("state");
        record["path"] = options.path;
        record["files"] = job.files().size();
        record["ranks"] = job.ranks();
        record["step"] = index.step;
        record["left_out"] = job.left_out();
        record["config_hash"] = fmt::format("{:016x}", index.config_hash);
        record["bytes"] = job.bytes();
        fmt::print("{}\n", json_line(record));
    } else {
        fmt::print("state  {} in {} of {} ranks, step {}, policy {}\n",
                   format_bytes(static_cast<double>(job.bytes())),
                   job.files().size() == 1 ? "1 file" : fmt::format("{} files", job.files().size()),
                   job.ranks(), index.step, fmt::format("{:016x}", index.config_hash));
        if (job.atoms().empty()) {
            fmt::print("       nothing is kept of any tensor\n");
        } else {
            fmt::print("{:<14} {:<5} {:<10} {:>11} {:>7}  {:<13} {:>5} {:>10} {:>10} {:>10}\n",
                       "op", "dtype", "redop", "count", "ordinal", "what", "ranks", "bytes", "owed",
                       "by sums");
        }
    }
    for (const Atom& atom : job.atoms()) {
        SLIMWIRE_TRY_ASSIGN(const double owed, norm_of(job, atom, false));
        SLIMWIRE_TRY_ASSIGN(const double sums, norm_of(job, atom, true));
        if (options.json) {
            Json record = json_record("state_atom");
            put_key(atom.key, &record);
            record["what"] = name_of(atom);
            record["ranks"] = atom.shares.size();
            record["bytes"] = atom.bytes;
            record["elems"] = atom.elems();
            record["owed_norm"] = number_or_null(owed);
            record["sums_norm"] = number_or_null(sums);
            record["loss_scale"] = number_or_null(atom.loss_scale);
            fmt::print("{}\n", json_line(record));
            continue;
        }
        const CallSignature& signature = atom.key.signature;
        fmt::print("{:<14} {:<5} {:<10} {:>11} {:>7}  {:<13} {:>5} {:>10} {:>10} {:>10}{}\n",
                   op_name(signature.op), dtype_name(signature.dtype), redop_name(signature.redop),
                   signature.count, atom.ordinal == kNamed ? "-" : std::to_string(atom.ordinal),
                   name_of(atom), atom.shares.size(), format_bytes(static_cast<double>(atom.bytes)),
                   norm_text(owed), norm_text(sums),
                   atom.key.name.empty() ? "" : "  " + atom.key.name);
    }
    return kSuccess;
}

Result<int> check(const StateOptions& options) {
    Result<SavedJob> opened = SavedJob::open(options.path);
    std::vector<std::string> findings;
    if (opened.ok()) {
        findings = opened.value().findings();
        if (const uint64_t lacks = opened.value().left_out(); lacks > 0) {
            findings.push_back("it lacks " + left_out_text(lacks));
        }
    } else {
        findings.push_back(opened.status().message());
    }
    if (options.json) {
        Json record = json_record("state_check");
        record["path"] = options.path;
        record["ok"] = findings.empty();
        record["findings"] = findings;
        fmt::print("{}\n", json_line(record));
    } else if (findings.empty()) {
        const SavedJob& job = opened.value();
        fmt::print("{}: whole, {} ranks at step {}, {} atoms\n", options.path, job.ranks(),
                   job.files().front().index().step, job.atoms().size());
    }
    for (const std::string& finding : findings) {
        fail(kCheckFailed, finding);
    }
    return findings.empty() ? kSuccess : kCheckFailed;
}

struct Difference {
    double square = 0, of = 0, largest = 0;
};

// Of what two atoms are worth to the optimizer, contributions and sums together.
Status compare(const SavedJob& job,
               const Atom& atom,
               const SavedJob& other,
               const Atom& of_other,
               Difference* difference) {
    const uint64_t elems = atom.elems();
    std::vector<double> a, b, more;
    const auto total = [&](const SavedJob& of, const Atom& one, uint64_t at, auto* out) {
        out->resize(std::min<uint64_t>(kWindow, elems - at));
        more.resize(out->size());
        SLIMWIRE_TRY(of.owed(one, false, at, *out));
        SLIMWIRE_TRY(of.owed(one, true, at, more));
        std::transform(out->begin(), out->end(), more.begin(), out->begin(), std::plus<>());
        return Status();
    };
    for (uint64_t at = 0; at < elems; at += kWindow) {
        SLIMWIRE_TRY(total(job, atom, at, &a));
        SLIMWIRE_TRY(total(other, of_other, at, &b));
        for (size_t i = 0; i < a.size(); ++i) {
            const double by = b[i] - a[i];
            difference->square += by * by;
            difference->of += a[i] * a[i];
            difference->largest = std::max(difference->largest, std::abs(by));
        }
    }
    return {};
}

uint64_t bytes_of(const SavedJob& job, const Atom::Share& share) {
    return job.files()[share.file].index().tensors[share.tensor].bytes;
}

// Whether two atoms lie alike: as many parts, each of as many bytes.
bool same_parts(const SavedJob& job,
                const Atom& atom,
                const SavedJob& other,
                const Atom& of_other) {
    return std::equal(atom.shares.begin(), atom.shares.end(), of_other.shares.begin(),
                      of_other.shares.end(), [&](const Atom::Share& a, const Atom::Share& b) {
                          return bytes_of(job, a) == bytes_of(other, b);
                      });
}

// Whether two atoms that lie alike have other bytes.
Result<bool> differs(const SavedJob& job,
                     const Atom& atom,
                     const SavedJob& other,
                     const Atom& of_other) {
    std::vector<std::byte> a, b;
    for (size_t i = 0; i < atom.shares.size(); ++i) {
        const Atom::Share &one = atom.shares[i], &its = of_other.shares[i];
        const uint64_t bytes = bytes_of(job, one);
        for (uint64_t at = 0; at < bytes; at += kWindow) {
            a.resize(std::min(bytes - at, uint64_t{kWindow}));
            b.resize(a.size());
            SLIMWIRE_TRY(job.files()[one.file].read(one.tensor, at, a));
            SLIMWIRE_TRY(other.files()[its.file].read(its.tensor, at, b));
            if (a != b) {
                return true;
            }
        }
    }
    return false;
}

Result<int> diff(const StateOptions& options) {
    SLIMWIRE_TRY_ASSIGN(const SavedJob first, open_job(options.path));
    SLIMWIRE_TRY_ASSIGN(const SavedJob second, open_job(options.other));
    std::map<AtomKey, const Atom*> others;
    for (const Atom& atom : second.atoms()) {
        others.emplace(atom.key, &atom);
    }
    bool any = false;
    const auto tell = [&](const Atom& atom, const char* how, const Difference& by) {
        any = true;
        if (!options.json) {
            fmt::print("{}: {}", atom.key.text(), how);
            if (by.square > 0) {
                fmt::print(" by {}, {:.3g} at most",
                           by.of > 0
                               ? fmt::format("{:.3g} of its norm", std::sqrt(by.square / by.of))
                               : "all that is owed",
                           by.largest);
            }
            fmt::print("\n");
            return;
        }
        Json record = json_record("state_diff");
        put_key(atom.key, &record);
        record["what"] = name_of(atom);
        record["how"] = how;
        record["relative"] =
            by.square > 0 ? number_or_null(std::sqrt(by.square / by.of)) : Json(nullptr);
        record["largest"] = by.square > 0 ? Json(by.largest) : Json(nullptr);
        fmt::print("{}\n", json_line(record));
    };
    for (const Atom& atom : first.atoms()) {
        const auto found = others.find(atom.key);
        if (found == others.end()) {
            tell(atom, "only in the first", {});
            continue;
        }
        Difference by;
        const Atom& its = *found->second;
        // Laid out otherwise, as much may be owed all the same.
        const bool worth = atom.elems() > 0 && atom.elems() == its.elems();
        const bool parts = same_parts(first, atom, second, its);
        bool other = true;
        if (parts) {
            SLIMWIRE_TRY_ASSIGN(other, differs(first, atom, second, its));
        }
        if (other && worth) {
            SLIMWIRE_TRY(compare(first, atom, second, its, &by));
            other = parts || !(by.square <= 0);  // NaN, too
        }
        if (other) {
            tell(atom, "differs", by);
        }
        others.erase(found);
    }
    for (const auto& [key, atom] : others) {
        tell(*atom, "only in the second", {});
    }
    return any ? kCheckFailed : kSuccess;
}

Result<int> convert(const StateOptions& options) {
    SLIMWIRE_TRY(convert_state(options.path, options.ranks,
                               {.drop = options.drop,
                                .flat_shards = !options.shards.empty(),
                                .sums = options.sums.empty()     ? SumUse::kWhole
                                        : options.sums == "mean" ? SumUse::kMean
                                                                 : SumUse::kFsdp},
                               options.other));
    return kSuccess;
}

}  // namespace

void add_state_command(CLI::App& app, Invocation* invocation) {
    CLI::App* command = app.add_subcommand(
        "state", "what slimwire_save_state wrote: a file, or a folder with those of all ranks");
    command->require_subcommand(1);
    auto options = std::make_shared<StateOptions>();
    const auto add = [&](const char* name, const char* what,
                         Result<int> (*run)(const StateOptions&)) {
        CLI::App* one = command->add_subcommand(name, what);
        one->add_option("path", options->path, "a file, or a folder")->required();
        one->callback([=] {
            invocation->action = [=] {
                const Result<int> ended = run(*options);
                return ended.ok() ? ended.value() : fail(kCheckFailed, ended.status());
            };
        });
        return one;
    };
    const auto with_json = [&](CLI::App* one) {
        one->add_flag("--json", options->json, "JSON lines");
        return one;
    };
    with_json(add(
        "show",
        "the atoms: one tensor and one state of it, over all ranks; its size, and the norm of what "
        "the optimizer would still receive, by contributions and by sums",
        show));
    with_json(
        add("check", "whether they are the whole state of one job at one step; all is read", check))
        ->footer("Exit code 1 where something is wrong with them.");
    with_json(add("diff", "atoms that two states do not have alike", diff))
        ->footer("Exit code 1 where something differs.")
        ->add_option("other", options->other, "another file or folder")
        ->required();
    CLI::App* converting =
        add("convert", "lays the state out for another number of ranks", convert);
    converting->add_option("--ranks", options->ranks, "that many")
        ->required()
        ->check(CLI::Range(1, 1 << 20));
    converting->add_option("--out", options->other, "a new or empty folder for the files")
        ->required();
    converting->add_flag("--drop", options->drop,
                         "leaves out, with a note, what means nothing on other ranks");
    converting
        ->add_option("--shards", options->shards,
                     "flat: of reduce-scatters, too, whose shards are parts of one row of all "
                     "parameters (FSDP1, ZeRO-1 and 2, Megatron's distributed optimizer; not "
                     "FSDP2 and ZeRO-3)")
        ->check(CLI::IsMember({"flat"}));
    converting
        ->add_option("--sums", options->sums,
                     "what the program does with sums when they came: mean, it divides them by the "
                     "number of ranks (DeepSpeed), or fsdp, as FSDP1 does; else nothing, or it "
                     "divided contributions (DistributedDataParallel, Megatron)")
        ->check(CLI::IsMember({"mean", "fsdp"}));
    converting->footer("Every rank of the next job loads its file, state.R for rank R.");
}

}  // namespace slimwire::cli
