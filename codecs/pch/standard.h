// Precompiled for the libraries of many files; no file counts on it: each includes what it uses.
// gcc warns of a #pragma once in what it compiles by itself.
#ifndef SLIMWIRE_CODECS_PCH_STANDARD_H
#define SLIMWIRE_CODECS_PCH_STANDARD_H

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#endif
