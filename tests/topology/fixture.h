// The recorded machines in data/, read; for all tests of topology/.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "topology/machine/places.h"
#include "topology/readers/machine_xml.h"

namespace slimwire::test {

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string fixture_path(const std::string& name) {
    return std::string(TOPOLOGY_DATA) + "/" + name;
}

struct ReadMachine {
    explicit ReadMachine(Machine read) : machine(std::move(read)), paths(machine) {
        places = find_places(machine, paths);
    }
    Machine machine;
    PathTable paths;
    Places places;

    // "PIX 12" between GPUs by their place.
    [[nodiscard]] std::string way(size_t a, size_t b) const {
        return text(gpu_path(paths, places.gpus[a], places.gpus[b]));
    }
    [[nodiscard]] std::string way_to_nic(size_t gpu, size_t nic) const {
        return text(paths.between(places.gpus[gpu].gpu, machine.nics()[nic]));
    }
    static std::string text(const Path& path) {
        std::string number = std::to_string(path.gb_s);
        number.erase(number.find_last_not_of('0') + 1);
        number.erase(number.find_last_not_of('.') + 1);
        return std::string(path_class_name(path.path_class)) + " " + number;
    }
    [[nodiscard]] std::string notes() const {
        std::string all;
        for (const std::string& note : machine.notes) {
            all += note + "\n";
        }
        return all;
    }
};

inline ReadMachine read_fixture(const std::string& name) {
    Result<Machine> machine = read_machine_xml(read_text(fixture_path(name)));
    EXPECT_TRUE(machine.ok()) << machine.status().message();
    return ReadMachine(machine.ok() ? std::move(machine).value() : Machine{});
}

}  // namespace slimwire::test
