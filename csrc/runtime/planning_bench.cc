// What planning attention costs, and what balance is worth: times of the planner, and replays over simulated cores.
//
// Owns the mixes, which are drawn from files of request lengths, and the policies that are compared. Times of units are
// those of the real kernel, measured once for each shape on one core; cores are simulated. Invariant: all policies
// of a mix see the same unit times, and are compared with the same lower bound.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/cpu.h"
#include "limits/rates.h"
#include "runtime/task_table.h"
#include "runtime/units.h"

namespace plait {
namespace {

using limits::Now;

// The default model's attention: three KV heads, three query heads each, and its layers.
constexpr uint32_t kKvHeads = 3;
constexpr uint32_t kManyHeads = 32;  // as large models have
constexpr uint32_t kGroup = 3;
constexpr uint32_t kDim = 64;
constexpr uint32_t kLayers = 30;
constexpr uint32_t kBlock = 32;
constexpr uint32_t kMostKeys = 8192;
constexpr uint32_t kBudget = 256;  // tokens of a mix

const Kernels& KernelsHere() {
#if defined(__x86_64__)
  if (BestTarget() == Target::kAvx512) return avx512::kKernels;
  if (BestTarget() == Target::kAvx2) return avx2::kKernels;
#endif
  return baseline::kKernels;
}

AttendShape Shape() {
  AttendShape shape;
  shape.kv_heads = kKvHeads, shape.group = kGroup;
  shape.head_dim_k = shape.head_dim_v = kDim;
  shape.key_bytes = 2 * 2 * kDim;
  shape.tokens_per_block = kBlock;
  return shape;
}

// Seconds that the kernel takes for some rows of one KV head that see so many keys; each shape is measured once.
class UnitTimes {
 public:
  UnitTimes()
      : kernels_(KernelsHere()),
        pool_(size_t{kMostKeys} * kKvHeads * kDim * 2 * 2),
        scratch_(kernels_.attend_scratch_bytes(kGroup, kDim, kDim)),
        q_(kMaxAttendRows * kGroup * kKvHeads * kDim, 0.1f),
        y_(q_.size()),
        table_(kMostKeys / kBlock) {
    std::memset(pool_.data(), 0, pool_.size());
    std::iota(table_.begin(), table_.end(), 0);
  }

  double Of(uint32_t num_rows, uint64_t num_keys) {
    const uint64_t rounded = std::clamp<uint64_t>(RoundUp(num_keys, kBlock), RoundUp(num_rows, kBlock), kMostKeys);
    const auto [found, is_new] = seconds_.try_emplace({num_rows, rounded}, 0.0);
    if (is_new) found->second = Measure(num_rows, rounded);
    return found->second;
  }

 private:
  double Measure(uint32_t num_rows, uint64_t num_keys) {
    AttendCall call;
    constexpr size_t kHeadBytes = size_t{kBlock} * kDim * 2 * 2;
    call.place = {pool_.data(), kHeadBytes * kKvHeads, 0, kHeadBytes, kBlock, kKvHeads, kDim, kDim, CacheType::kF16};
    call.table = table_.data();
    call.group = kGroup;
    call.q = q_.data(), call.q_stride = kGroup * kKvHeads * kDim;
    call.y = y_.data(), call.y_stride = call.q_stride;
    call.start = num_keys - num_rows, call.num_rows = num_rows;
    double best = 1e30;
    for (int sample = 0; sample < 4; ++sample) {
      const double began = Now();
      kernels_.attend(call, scratch_.data());
      best = std::min(best, Now() - began);
    }
    return best;
  }

  const Kernels& kernels_;
  AlignedBuffer pool_, scratch_;
  std::vector<float> q_, y_;
  std::vector<int32_t> table_;
  std::map<std::pair<uint32_t, uint64_t>, double> seconds_;
};

enum Stage { kPrefill, kDecode, kVerify };
constexpr int kNumStages = 3;

struct Mix {
  std::vector<TokenRow> rows;
  std::vector<Stage> stages;  // of rows
};

struct Length {
  uint32_t prompt = 0;
  uint32_t answer = 0;
};

std::vector<Length> ReadLengths(const std::string& path) {
  std::ifstream file(path);
  std::vector<Length> lengths;
  std::string line;
  while (std::getline(file, line)) {
    Length one;
    if (std::sscanf(line.c_str(), "%u,%u", &one.prompt, &one.answer) == 2) lengths.push_back(one);
  }
  return lengths;
}

// A step: sequences somewhere in their answers, a third of them with guesses to verify, and chunks of prompts.
Mix DrawMix(const std::vector<Length>& lengths, Draws& draws) {
  Mix mix;
  uint32_t start = 0;
  const auto add = [&](Stage stage, uint32_t num_tokens, uint64_t kv_len, uint32_t tile_rows) {
    mix.rows.push_back({start, num_tokens, std::min<uint64_t>(kv_len, kMostKeys), tile_rows});
    mix.stages.push_back(stage);
    start += num_tokens;
  };
  const auto one = [&] { return lengths[draws.Between(0, static_cast<uint32_t>(lengths.size()) - 1)]; };
  const uint32_t num_running = draws.Between(1, 32);
  for (uint32_t i = 0; i < num_running; ++i) {
    const Length length = one();
    const uint64_t context = length.prompt + draws.Between(1, std::max(1u, length.answer));
    const bool is_verify = draws.Between(0, 2) == 0;
    const uint32_t tokens = is_verify ? draws.Between(2, 8) : 1;
    // Rows are exact: a tile costs what it has.
    add(is_verify ? kVerify : kDecode, tokens, context + tokens, tokens);
  }
  for (uint32_t prompts = draws.Between(0, 2); prompts > 0 && start < kBudget; --prompts) {
    const Length length = one();
    const uint32_t prompt = std::min(length.prompt, kMostKeys);
    if (prompt == 0) continue;
    const uint32_t tokens = std::min(prompt, draws.Between(1, kBudget - start));
    add(kPrefill, tokens, draws.Between(tokens, prompt), kMaxAttendRows);
  }
  return mix;
}

// The latest end of cores that each take the next unit as soon as they are free.
double Claimed(const std::vector<double>& units, uint32_t num_cores) {
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  for (uint32_t core = 0; core < num_cores; ++core) ends.push(0.0);
  double last = 0.0;
  for (const double unit : units) {
    const double end = ends.top() + unit;
    ends.pop();
    ends.push(end);
    last = std::max(last, end);
  }
  return last;
}

double Heaviest(const std::vector<double>& units) {
  return units.empty() ? 0.0 : *std::max_element(units.begin(), units.end());
}

struct Policy {
  const char* name;
  std::vector<double> over;  // makespan by lower bound, of mixes
};

double Mean(const std::vector<double>& of) {
  return std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
}
double Quantile(std::vector<double> of, double part) {
  std::sort(of.begin(), of.end());
  return of[static_cast<size_t>(part * static_cast<double>(of.size() - 1))];
}

class Replay {
 public:
  Replay(UnitTimes& times, uint32_t num_heads, uint32_t num_cores)
      : times_(times), num_heads_(num_heads), num_cores_(num_cores) {}

  void Add(const Mix& mix) {
    const std::vector<TaskTile> tiles = CutTiles(mix.rows);
    std::vector<double> loads, seconds;
    for (const TaskTile& tile : tiles) {
      loads.push_back(tile.load(mix.rows[tile.row]));
      seconds.push_back(times_.Of(tile.num_tokens, tile.num_keys));
    }
    const std::vector<uint32_t> order = HeaviestFirst(loads);
    std::vector<uint32_t> arrival(tiles.size());
    std::iota(arrival.begin(), arrival.end(), 0u);
    const std::vector<double> units = InOrder(seconds, order);
    const double total = std::accumulate(units.begin(), units.end(), 0.0);
    const double bound = std::max(total / num_cores_, Heaviest(units));
    double snake = 0.0;
    for (const std::vector<CoreTask>& core : DealSnake(order, num_heads_, num_cores_)) {
      double end = 0.0;
      for (const CoreTask& task : core) end += seconds[task.tile];
      snake = std::max(snake, end);
    }
    double apart = 0.0;
    for (int stage = 0; stage < kNumStages; ++stage) {
      std::vector<uint32_t> own;
      for (const uint32_t tile : order) {
        if (mix.stages[tiles[tile].row] == stage) own.push_back(tile);
      }
      apart += Claimed(InOrder(seconds, own), num_cores_);
    }
    // A greedy deal by true times, and claims in that order, come to the same: who is free first has least.
    std::vector<uint32_t> by_time = HeaviestFirst(seconds);
    Note(0, snake / bound);
    Note(1, Claimed(InOrder(seconds, by_time), num_cores_) / bound);
    Note(2, Claimed(units, num_cores_) / bound);
    Note(3, Claimed(InOrder(seconds, arrival), num_cores_) / bound);
    Note(4, Even(InOrder(seconds, arrival)) / bound);
    Note(5, apart / bound);
    Note(6, OfRuntime(mix) / bound);
  }

  void Print(const char* name) const {
    for (const Policy& policy : policies_) {
      std::printf("%-20s %5u %5u  %-38s %6.3f %6.3f\n", name, num_heads_, num_cores_, policy.name, Mean(policy.over),
                  Quantile(policy.over, 0.95));
    }
  }

 private:
  std::vector<double> InOrder(const std::vector<double>& seconds, const std::vector<uint32_t>& order) const {
    std::vector<double> units;
    for (const uint32_t tile : order) units.insert(units.end(), num_heads_, seconds[tile]);
    return units;
  }

  // Cores have equally many neighbouring units.
  double Even(const std::vector<double>& units) const {
    double last = 0.0;
    for (uint32_t core = 0; core < num_cores_; ++core) {
      const auto at = [&](size_t of) { return units.begin() + static_cast<ptrdiff_t>(units.size() * of / num_cores_); };
      last = std::max(last, std::accumulate(at(core), at(core + 1), 0.0));
    }
    return last;
  }

  // As the runtime cuts and claims it: small tasks share a unit, long ones are cut by key tiles.
  double OfRuntime(const Mix& mix) {
    std::vector<ChunkExtent> chunks;
    for (const TokenRow& row : mix.rows) chunks.push_back({row.start, row.num_tokens, row.kv_len - row.num_tokens, {}});
    AttendShape shape = Shape();
    shape.kv_heads = num_heads_;
    const AttendTasks tasks = SplitAttend(shape, chunks, {num_cores_});
    std::vector<double> units;
    for (uint32_t unit = 0; unit < tasks.num_units(); ++unit) {
      double seconds = 0.0;
      for (uint32_t i = tasks.unit_begins[unit]; i < tasks.unit_begins[unit + 1]; ++i) {
        const AttendTask& task = tasks.tasks[i];
        const uint64_t keys = chunks[task.chunk].start + task.first_row + task.num_rows;
        const uint64_t first = uint64_t{task.first_tile} * kKeyTile;
        const uint64_t seen = task.whole == kNoIndex ? keys : std::min(keys - first, task.num_tiles * kKeyTile);
        seconds += times_.Of(task.num_rows, seen);
      }
      units.push_back(seconds);
    }
    return Claimed(units, num_cores_);
  }

  void Note(size_t policy, double over) { policies_[policy].over.push_back(over); }

  UnitTimes& times_;
  const uint32_t num_heads_;
  const uint32_t num_cores_;
  Policy policies_[7] = {{"table, dealt as a snake", {}},
                         {"greedy (longest measured time first)", {}},
                         {"table, claimed", {}},
                         {"arrival order, claimed", {}},
                         {"arrival order, dealt evenly", {}},
                         {"P, D and V launched apart, claimed", {}},
                         {"the runtime's units, claimed", {}}};
};

// Best and median microseconds of a call.
template <typename Work>
std::pair<double, double> TimeOf(int num_samples, const Work& work) {
  std::vector<double> us;
  for (int sample = 0; sample < num_samples; ++sample) {
    const double began = Now();
    work();
    us.push_back((Now() - began) * 1e6);
  }
  return {Quantile(us, 0.0), Quantile(us, 0.5)};
}

struct Segments {
  const char* name;
  std::vector<std::vector<int32_t>> tables;
  std::vector<ChunkExtent> chunks;
};

// 64 sequences. `num_shared`: slots that all begin with.
Segments MakeSegments(const char* name, uint32_t tokens_each, uint64_t start, uint64_t num_shared, uint32_t num_long) {
  constexpr uint32_t kSegments = 64;
  Segments made{name, {}, {}};
  uint32_t row = 0;
  for (uint32_t i = 0; i < kSegments; ++i) {
    std::vector<int32_t>& table = made.tables.emplace_back();
    const uint32_t tokens = i < num_long ? 128 : tokens_each;
    const uint64_t begin = start + 13 * i;
    for (uint64_t block = 0; block <= (begin + tokens) / kBlock; ++block) {
      table.push_back(static_cast<int32_t>(block < num_shared / kBlock ? block : 1000 * (i + 1) + block));
    }
    made.chunks.push_back({row, tokens, begin, {}});
    row += tokens;
  }
  for (uint32_t i = 0; i < kSegments; ++i) made.chunks[i].table = made.tables[i];
  return made;
}

void TimePlanner(UnitTimes& times, int num_samples) {
  std::printf("%-38s %8s %8s %10s %10s\n", "planning 64 segments", "best us", "median", "attend us", "share");
  for (const Segments& segments :
       {MakeSegments("64 decodes behind 500 tokens", 1, 500, 0, 0),
        MakeSegments("64 decodes behind 3000", 1, 3000, 0, 0),
        MakeSegments("64 decodes that share 768", 1, 800, 768, 0),
        MakeSegments("64 decodes that share 4096", 1, 4100, 4096, 0),
        MakeSegments("62 decodes, 2 chunks of 128", 1, 1000, 0, 2), MakeSegments("64 verifies of 5", 5, 1000, 0, 0)}) {
    size_t num_units = 0;
    const auto [best, median] =
        TimeOf(num_samples, [&] { num_units += SplitAttend(Shape(), segments.chunks, {2}).num_units(); });
    double attend_s = 0.0;
    for (const ChunkExtent& chunk : segments.chunks) {
      for (uint32_t row = 0; row < chunk.num_rows; row += kMaxAttendRows) {
        const uint32_t count = std::min<uint32_t>(kMaxAttendRows, chunk.num_rows - row);
        attend_s += times.Of(count, chunk.start + row + count) * kKvHeads * kLayers;
      }
    }
    // Two workers: the planner keeps one thread busy while both would attend.
    const double attend_us = attend_s * 1e6 / 2;
    std::printf("%-38s %8.1f %8.1f %10.0f %9.2f%%\n", segments.name, best, median, attend_us, median / attend_us * 100);
  }
}

void TimeOrders(UnitTimes& times, const std::vector<Mix>& mixes) {
  double attend_s = 0.0;
  std::vector<std::vector<double>> loads;
  for (const Mix& mix : mixes) {
    loads.emplace_back();
    for (const TaskTile& tile : CutTiles(mix.rows)) {
      loads.back().push_back(tile.load(mix.rows[tile.row]));
      attend_s += times.Of(tile.num_tokens, tile.num_keys) * kKvHeads * kLayers;
    }
  }
  for (const uint32_t num_cores : {2u, 8u, 24u}) {
    size_t sink = 0;
    const double snake = TimeOf(9, [&] {
                           for (const std::vector<double>& of : loads)
                             sink += DealSnake(HeaviestFirst(of), kKvHeads, num_cores).size();
                         }).second;
    const double greedy = TimeOf(9, [&] {
                            for (const std::vector<double>& of : loads) {
                              std::vector<double> units;
                              for (const uint32_t tile : HeaviestFirst(of))
                                units.insert(units.end(), kKvHeads, of[tile]);
                              sink += Claimed(units, num_cores) > 0.0;
                            }
                          }).second;
    const double attend_us = attend_s * 1e6 / num_cores;
    std::printf("%u cores: order and snake %.2f us a step, %.3f%% of its attention; greedy %.2f us, %.3f%%\n",
                num_cores, snake / static_cast<double>(mixes.size()), snake / attend_us * 100,
                greedy / static_cast<double>(mixes.size()), greedy / attend_us * 100);
  }
}

}  // namespace
}  // namespace plait

int main(int count, char** arguments) {
  using namespace plait;
  int num_mixes = 500;
  std::vector<std::string> paths;
  for (int index = 1; index < count; ++index) {
    if (std::string(arguments[index]) == "--mixes" && index + 1 < count) {
      num_mixes = std::atoi(arguments[++index]);
    } else {
      paths.emplace_back(arguments[index]);
    }
  }
  if (num_mixes < 1 || (!paths.empty() && paths[0].starts_with("-"))) {
    std::fprintf(stderr, "usage: planning_bench [--mixes 500] [LENGTHS.csv ...]   (bench/data has two)\n");
    return 2;
  }
  UnitTimes times;
  TimePlanner(times, 2000);
  for (const std::string& path : paths) {
    const std::vector<Length> lengths = ReadLengths(path);
    if (lengths.empty()) {
      std::fprintf(stderr, "%s has no lines `input_tokens,output_tokens`\n", path.c_str());
      return 1;
    }
    Draws draws(1);
    std::vector<Mix> mixes;
    for (int i = 0; i < num_mixes; ++i) mixes.push_back(DrawMix(lengths, draws));
    std::printf("\n%s, %d mixes: makespan by lower bound\n%-20s %5s %5s  %-38s %6s %6s\n", path.c_str(), num_mixes,
                "file", "heads", "cores", "policy", "mean", "p95");
    const std::string name = path.substr(path.find_last_of('/') + 1);
    for (const uint32_t num_heads : {kKvHeads, kManyHeads}) {
      for (const uint32_t num_cores : {2u, 8u, 24u}) {
        Replay replay(times, num_heads, num_cores);
        for (const Mix& mix : mixes) replay.Add(mix);
        replay.Print(name.c_str());
      }
    }
    TimeOrders(times, mixes);
  }
  return 0;
}
