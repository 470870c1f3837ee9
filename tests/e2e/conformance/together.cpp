#include "tests/e2e/conformance/together.h"

#include "tests/support/nccl_program.h"

namespace conformance {

Together::Together(const std::vector<ncclComm_t>& worlds,
                   const Rules& rules,
                   const Weights& weights,
                   size_t arena_elems,
                   bool judged)
    : rules_(rules), judged_(judged) {
    std::vector<ncclComm_t> splits;
    split_worlds(worlds, &splits);
    for (size_t i = 0; i < worlds.size(); ++i) {
        players_.push_back(std::make_unique<Player>(static_cast<int>(i), worlds[i], splits[i],
                                                    rules, arena_elems));
        messengers_.push_back(std::make_unique<Messenger>(players_[i].get(), rules, weights));
    }
}

// Call by call over all devices, or, in a group, device by device.
void Together::issue(const Batch& batch, Grouping grouping, bool device_by_device) {
    for (const auto& player : players_) {
        player->select();
        player->begin(batch);
    }
    const size_t calls = batch.calls.size();
    const bool group = grouping != Grouping::kOneByOne;
    const bool nested = grouping == Grouping::kNestedGroups;
    if (group) {
        CHECK_NCCL(ncclGroupStart());
    }
    const size_t outer = group && device_by_device ? players_.size() : calls;
    const size_t inner = group && device_by_device ? calls : players_.size();
    for (size_t i = 0; i < outer; ++i) {
        if (!group || nested) {
            CHECK_NCCL(ncclGroupStart());
        }
        for (size_t k = 0; k < inner; ++k) {
            const size_t device = group && device_by_device ? i : k;
            players_[device]->select();
            players_[device]->call(batch, group && device_by_device ? k : i);
        }
        if (!group || nested) {
            CHECK_NCCL(ncclGroupEnd());
        }
    }
    if (group) {
        CHECK_NCCL(ncclGroupEnd());
    }
    for (const auto& player : players_) {
        player->select();
        player->end(batch);
    }
}

void Together::play(const Batch& batch, uint64_t number) {
    issue(batch, batch.grouping, number % 2 == 0);
    for (const auto& player : players_) {
        judged_ ? player->check(batch, number) : player->check(batch, number, Player::take_all);
    }
    if (!batch.repeat || !judged_) {
        return;
    }
    issue(batch, Player::regrouped(batch), number % 2 != 0);
    for (const auto& player : players_) {
        player->compare_with_before(batch, number);
    }
}

void Together::play(const Series& series, uint64_t number) {
    std::vector<SeriesJudge> judges(players_.size(), SeriesJudge(series, rules_));
    for (size_t step = 0; step < series.steps.size(); ++step) {
        issue(series.steps[step], series.steps[step].grouping, (number + step) % 2 == 0);
        for (size_t i = 0; i < players_.size(); ++i) {
            players_[i]->check(series.steps[step], number, judges[i].of_step(step));
        }
    }
}

void Together::play(const Traffic& traffic, uint64_t number) {
    Chance own(traffic.grouping);
    for (int round = 0; round < (traffic.repeat ? 2 : 1); ++round) {
        for (size_t i = 0; i < players_.size(); ++i) {
            players_[i]->select();
            messengers_[i]->begin(traffic);
        }
        CHECK_NCCL(ncclGroupStart());
        for (size_t i = 0; i < players_.size(); ++i) {
            players_[i]->select();
            messengers_[i]->make_all(traffic, own);
        }
        CHECK_NCCL(ncclGroupEnd());
        for (size_t i = 0; i < players_.size(); ++i) {
            players_[i]->select();
            messengers_[i]->end(traffic, number, round, judged_);
        }
    }
}

void Together::compare_digests(uint64_t number) {
    for (const int member : {0, 1}) {
        for (const auto& player : players_) {
            player->select();
            player->begin_digest(member, number);
        }
        CHECK_NCCL(ncclGroupStart());
        for (const auto& player : players_) {
            player->select();
            player->gather_digests(member);
        }
        CHECK_NCCL(ncclGroupEnd());
        for (const auto& player : players_) {
            player->select();
            player->check_digests(member, number);
        }
    }
}

}  // namespace conformance
