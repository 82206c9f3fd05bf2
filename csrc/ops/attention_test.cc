// Tests of attention and of cache writes: every target against a scalar reference, bit for bit.
//
// Owns the reference, written from docs/concepts/numerics.md with one row and one key at a time, and the cases.
// Invariant: all memory that a row may not look at is NaN.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/aligned.h"
#include "base/testing.h"
#include "formats/half.h"
#include "ops/kernels.h"
#include "ops/rows_reference.h"

namespace plait {
namespace {

using reference::Random;

struct Shape {
  size_t kv_heads = 1;
  size_t group = 1;
  size_t head_dim_k = 16;
  size_t head_dim_v = 16;
  size_t tokens_per_block = 32;
  CacheType type = CacheType::kF16;
  Reach reach = Reach::kCausal;
  size_t reach_size = 0;
  float softcap = 0.0f;
  bool has_sinks = false;
  size_t length = 100;  // slots written
  float score_deviation = 1.0f;
};

float LargestOf(const float* x, size_t count) {
  float largest = 0.0f;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

constexpr float kLeastLargest = 0x1p-100f;

float ScaleOf(const float* x, size_t count) {
  const float largest = LargestOf(x, count);
  return largest < kLeastLargest ? 0.0f : largest / 127.0f;
}

// Whole numbers, as floats.
std::vector<float> RoundedToInt8(const float* x, size_t count) {
  const float largest = LargestOf(x, count);
  const float factor = largest < kLeastLargest ? 0.0f : 127.0f / largest;
  std::vector<float> rounded(count);
  for (size_t i = 0; i < count; ++i) rounded[i] = std::nearbyint(x[i] * factor);
  return rounded;
}

// Vectors of `width` that follow each other.
std::vector<float> RoundedVectors(const std::vector<float>& x, size_t width) {
  std::vector<float> rounded;
  for (size_t first = 0; first < x.size(); first += width) {
    const std::vector<float> one = RoundedToInt8(x.data() + first, width);
    rounded.insert(rounded.end(), one.begin(), one.end());
  }
  return rounded;
}

// A sequence in a pool whose blocks are in random order, with a layer before and behind it, and NaN everywhere else.
class Scene {
 public:
  Scene(const Shape& shape, uint32_t seed) : shape_(shape), random_(seed) {
    const size_t per_head = (VectorBytes(shape.type, shape.head_dim_k) + VectorBytes(shape.type, shape.head_dim_v)) *
                            shape.tokens_per_block;
    place_.head_bytes = per_head;
    place_.layer_offset = 64;
    place_.block_bytes = 64 + per_head * shape.kv_heads + 64;
    place_.tokens_per_block = shape.tokens_per_block;
    place_.kv_heads = shape.kv_heads;
    place_.head_dim_k = shape.head_dim_k;
    place_.head_dim_v = shape.head_dim_v;
    place_.type = shape.type;
    num_blocks_ = (shape.length + shape.tokens_per_block - 1) / shape.tokens_per_block;
    table_.resize(num_blocks_);
    std::iota(table_.begin(), table_.end(), 1);  // block 0 is nobody's
    for (size_t i = num_blocks_; i > 1; --i) std::swap(table_[i - 1], table_[random_.Below(i)]);
    pool_.assign((num_blocks_ + 2) * place_.block_bytes + 64, 0xff);  // NaN in every type
    place_.pool = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(pool_.data()) + 63) / 64 * 64);
    k_ = random_.Normals(shape.length * k_stride());
    v_ = random_.Normals(shape.length * v_stride());
    q_ = random_.Normals(shape.length * q_stride(),
                         shape.score_deviation / std::sqrt(static_cast<float>(shape.head_dim_k)));
    sinks_ = random_.Normals(heads());
    RoundVectors();
  }

  size_t heads() const { return shape_.kv_heads * shape_.group; }
  size_t k_stride() const { return shape_.kv_heads * shape_.head_dim_k; }
  size_t v_stride() const { return shape_.kv_heads * shape_.head_dim_v; }
  size_t q_stride() const { return heads() * shape_.head_dim_k; }
  size_t y_stride() const { return heads() * shape_.head_dim_v; }
  const Shape& shape() const { return shape_; }
  Random& random() { return random_; }
  CachePlace& place() { return place_; }
  std::vector<float>& v() { return v_; }
  const std::vector<uint8_t>& pool() const { return pool_; }

  // Rows [start, start + num_rows) into the cache by the kernel.
  void Write(const Kernels& kernels, size_t start, size_t num_rows) {
    RoundVectors();
    kernels.write_cache({place_, table_.data(), start, num_rows, k_.data() + start * k_stride(), k_stride(),
                         v_.data() + start * v_stride(), v_stride()});
  }

  float Stored(size_t slot, size_t kv_head, bool is_key, size_t column) const {
    const size_t tokens = place_.tokens_per_block;
    const uint8_t* head = place_.pool + static_cast<size_t>(table_[slot / tokens]) * place_.block_bytes +
                          place_.layer_offset + kv_head * place_.head_bytes;
    const size_t inside = slot % tokens;
    if (place_.type == CacheType::kInt8) return StoredInt8(head, inside, is_key, column);
    const size_t index =
        is_key ? column * tokens + inside : place_.head_dim_k * tokens + inside * place_.head_dim_v + column;
    if (place_.type == CacheType::kF32) {
      float number;
      std::memcpy(&number, head + index * 4, 4);
      return number;
    }
    uint16_t number;
    std::memcpy(&number, head + index * 2, 2);
    return place_.type == CacheType::kF16 ? reference::FloatOfHalf(number) : Bf16ToFloat(number);
  }

  // A number of 8 bits; column `width` is the scale.
  float StoredInt8(const uint8_t* head, size_t inside, bool is_key, size_t column) const {
    const size_t tokens = place_.tokens_per_block;
    const size_t depth = (place_.head_dim_k + 15) / 16 * 16;
    const size_t width = (place_.head_dim_v + 15) / 16 * 16;
    const size_t values_at = tokens * (depth + 4);
    float scale;
    if (is_key) {
      std::memcpy(&scale, head + tokens * depth + 4 * inside, 4);
      if (column == place_.head_dim_k) return scale;
      return static_cast<float>(head[(column / 4 * tokens + inside) * 4 + column % 4]) - 128.0f;
    }
    std::memcpy(&scale, head + values_at + tokens * width + 4 * inside, 4);
    if (column == place_.head_dim_v) return scale;
    return static_cast<float>(static_cast<int8_t>(head[values_at + inside / 2 * 2 * width + 2 * column + inside % 2]));
  }

  float Rounded(float number) const {
    if (place_.type == CacheType::kF32) return number;
    if (place_.type == CacheType::kF16) return reference::FloatOfHalf(reference::HalfOf(number));
    return Bf16ToFloat(FloatToBf16(number));
  }
  float Key(size_t slot, size_t kv_head, size_t d) const {
    const size_t at = slot * k_stride() + kv_head * shape_.head_dim_k + d;
    return place_.type == CacheType::kInt8 ? rounded_k_[at] : Rounded(k_[at]);
  }
  float Value(size_t slot, size_t kv_head, size_t c) const {
    const size_t at = slot * v_stride() + kv_head * shape_.head_dim_v + c;
    return place_.type == CacheType::kInt8 ? rounded_v_[at] : Rounded(v_[at]);
  }
  float KeyScale(size_t slot, size_t kv_head) const {
    return ScaleOf(k_.data() + slot * k_stride() + kv_head * shape_.head_dim_k, shape_.head_dim_k);
  }
  float ValueScale(size_t slot, size_t kv_head) const {
    return ScaleOf(v_.data() + slot * v_stride() + kv_head * shape_.head_dim_v, shape_.head_dim_v);
  }

  AttendCall Call(size_t kv_head, size_t start, size_t num_rows, float* y) const {
    AttendCall call;
    call.place = place_;
    call.table = table_.data();
    call.kv_head = kv_head;
    call.group = shape_.group;
    call.q = q_.data() + start * q_stride();
    call.q_stride = q_stride();
    call.y = y + start * y_stride();
    call.y_stride = y_stride();
    call.start = start;
    call.num_rows = num_rows;
    call.scale = 1.7f;
    call.softcap = shape_.softcap;
    call.reach = shape_.reach;
    call.reach_size = shape_.reach == Reach::kAll ? shape_.length : shape_.reach_size;
    call.sinks = shape_.has_sinks ? sinks_.data() : nullptr;
    return call;
  }

  void AttendStacked(const Kernels& kernels, const std::vector<uint32_t>& rows, size_t num_shared, float* y) const {
    const size_t bytes = kernels.attend_scratch_bytes(shape_.group, shape_.head_dim_k, shape_.head_dim_v);
    AlignedBuffer scratch(bytes);
    for (size_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      AttendStacked(kernels, rows, num_shared, kv_head, scratch.data(), y);
    }
  }

  // Rows [start, start + num_rows) in pieces of `step` rows; every `split` tiles are a call of their own (0: one call).
  void Attend(const Kernels& kernels, size_t start, size_t num_rows, size_t step, size_t split, float* y) const {
    const size_t bytes = kernels.attend_scratch_bytes(shape_.group, shape_.head_dim_k, shape_.head_dim_v);
    std::vector<uint8_t> scratch(bytes + 64, 0xff);
    uint8_t* aligned = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    for (size_t row = 0; row < num_rows; row += step) {
      for (size_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        AttendCall call = Call(kv_head, start + row, std::min(step, num_rows - row), y);
        if (split == 0) {
          kernels.attend(call, aligned);
        } else {
          AttendSplit(kernels, call, split, aligned);
        }
      }
    }
    CHECK(std::all_of(aligned + bytes, scratch.data() + scratch.size(), [](uint8_t byte) { return byte == 0xff; }));
  }

 private:
  void RoundVectors() {
    if (place_.type != CacheType::kInt8) return;
    rounded_k_ = RoundedVectors(k_, shape_.head_dim_k);
    rounded_v_ = RoundedVectors(v_, shape_.head_dim_v);
  }

  void AttendSplit(const Kernels& kernels, AttendCall call, size_t split, uint8_t* scratch) const {
    const size_t num_tiles = (shape_.length + kKeyTile - 1) / kKeyTile;
    const size_t per_tile = call.num_rows * call.group * (2 + shape_.head_dim_v);
    std::vector<float> partials(num_tiles * per_tile, reference::kNan);
    for (size_t tile = 0; tile < num_tiles; tile += split) {
      call.partials = partials.data() + tile * per_tile;
      call.first_tile = tile;
      call.num_tiles = std::min(split, num_tiles - tile);
      kernels.attend(call, scratch);
    }
    kernels.merge({nullptr, partials.data(), num_tiles, call.num_rows, call.group, shape_.head_dim_v, call.kv_head,
                   call.sinks, call.y, call.y_stride});
  }

  // The tiles that all rows see whole in one call for `rows`, in that order; the others row by row.
  void AttendStacked(const Kernels& kernels, const std::vector<uint32_t>& rows, size_t num_shared, size_t kv_head,
                     uint8_t* scratch, float* y) const {
    const size_t per_row = shape_.group * (2 + shape_.head_dim_v);
    std::vector<float> state(rows.size() * per_row, reference::kNan);
    AttendCall shared = Call(kv_head, 0, rows.size(), y);
    shared.q_rows = rows.data();
    shared.start = num_shared * kKeyTile;
    shared.num_tiles = num_shared;
    shared.state = state.data();
    kernels.attend(shared, scratch);
    for (size_t i = 0; i < rows.size(); ++i) {
      AttendCall own = Call(kv_head, rows[i], 1, y);
      own.first_tile = num_shared;
      own.num_tiles = rows[i] / kKeyTile + 1 - num_shared;
      std::vector<float> partials(own.num_tiles * per_row, reference::kNan);
      own.partials = partials.data();
      kernels.attend(own, scratch);
      kernels.merge({state.data() + i * per_row, partials.data(), own.num_tiles, 1, own.group, shape_.head_dim_v,
                     kv_head, nullptr, own.y, own.y_stride});
    }
  }

  Shape shape_;
  Random random_;
  CachePlace place_;
  size_t num_blocks_ = 0;
  std::vector<int32_t> table_;
  std::vector<uint8_t> pool_;
  std::vector<float> k_, v_, q_, sinks_;
  std::vector<float> rounded_k_, rounded_v_;  // to 8 bits
};

size_t FirstSeen(const AttendCall& call, size_t slot) {
  if (call.reach == Reach::kWindow) return slot + 1 > call.reach_size ? slot + 1 - call.reach_size : 0;
  return call.reach == Reach::kChunk ? slot / call.reach_size * call.reach_size : 0;
}

struct Tile {
  float max;
  float sum;
  std::vector<float> o;
};

// s of one key in a cache of 8 bits.
float Int8Score(const Scene& scene, const AttendCall& call, const float* q, size_t slot) {
  const size_t depth = scene.shape().head_dim_k;
  const std::vector<float> rounded = RoundedToInt8(q, depth);
  double sum = 0.0;
  for (size_t d = 0; d < depth; ++d) sum += double{rounded[d]} * scene.Key(slot, call.kv_head, d);
  const float factor = ScaleOf(q, depth) * call.scale;
  return static_cast<float>(sum) * factor * scene.KeyScale(slot, call.kv_head);
}

// o of a tile in a cache of 8 bits, whose keys from `low` on have weights p.
void SetInt8Values(const Scene& scene, size_t kv_head, size_t low, const std::vector<float>& p, std::vector<float>* o) {
  std::vector<float> weights;
  for (size_t i = 0; i < p.size(); ++i) weights.push_back(p[i] * scene.ValueScale(low + i, kv_head));
  const float largest = *std::max_element(weights.begin(), weights.end());
  const bool is_some = largest >= kLeastLargest;
  for (float& weight : weights) weight = std::nearbyint(weight * (is_some ? 32767.0f / largest : 0.0f));
  for (size_t c = 0; c < o->size(); ++c) {
    double sum = 0.0;
    for (size_t i = 0; i < p.size(); ++i) sum += double{weights[i]} * scene.Value(low + i, kv_head, c);
    (*o)[c] = static_cast<float>(sum) * (is_some ? largest / 32767.0f : 0.0f);
  }
}

Tile ReferenceTile(const Scene& scene, const AttendCall& call, const float* q, size_t low, size_t high) {
  const Shape& shape = scene.shape();
  std::vector<float> p;
  for (size_t slot = low; slot < high; ++slot) {
    float s = 0.0f;
    if (shape.type == CacheType::kInt8) {
      s = Int8Score(scene, call, q, slot);
    } else {
      for (size_t d = 0; d < shape.head_dim_k; ++d) s = std::fma(q[d], scene.Key(slot, call.kv_head, d), s);
      s *= call.scale;
    }
    if (call.softcap != 0.0f) s = call.softcap * reference::Tanh(s / call.softcap);
    p.push_back(s);
  }
  Tile tile{*std::max_element(p.begin(), p.end()), 0.0f, std::vector<float>(shape.head_dim_v, 0.0f)};
  float lanes[8] = {};
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = reference::Exp(p[i] - tile.max);
    lanes[(low + i) % 8] += p[i];
  }
  for (size_t half = 4; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  tile.sum = lanes[0];
  if (shape.type == CacheType::kInt8) {
    SetInt8Values(scene, call.kv_head, low, p, &tile.o);
    return tile;
  }
  for (size_t i = 0; i < p.size(); ++i) {
    for (size_t c = 0; c < shape.head_dim_v; ++c) {
      tile.o[c] = std::fma(p[i], scene.Value(low + i, call.kv_head, c), tile.o[c]);
    }
  }
  return tile;
}

void ReferenceRow(const Scene& scene, const AttendCall& call, size_t row, size_t head, float* y) {
  const Shape& shape = scene.shape();
  const size_t slot = call.start + row;
  const size_t low = FirstSeen(call, slot);
  const size_t high = call.reach == Reach::kAll ? call.reach_size : slot + 1;
  Tile all{-reference::kInfinity, 0.0f, std::vector<float>(shape.head_dim_v, 0.0f)};
  if (call.sinks != nullptr) all = {call.sinks[head], 1.0f, all.o};
  const float* q = call.q + row * call.q_stride + head * shape.head_dim_k;
  for (size_t first = low / kKeyTile * kKeyTile; first < high; first += kKeyTile) {
    const Tile tile = ReferenceTile(scene, call, q, std::max(low, first), std::min(high, first + kKeyTile));
    if (all.sum == 0.0f) {
      all = tile;
      continue;
    }
    const float max = std::max(all.max, tile.max);
    const float kept = reference::Exp(all.max - max);
    const float added = reference::Exp(tile.max - max);
    all.max = max;
    all.sum = std::fma(tile.sum, added, all.sum * kept);
    for (size_t c = 0; c < shape.head_dim_v; ++c) all.o[c] = std::fma(tile.o[c], added, all.o[c] * kept);
  }
  for (size_t c = 0; c < shape.head_dim_v; ++c) y[c] = all.o[c] / all.sum;
}

// All rows of the sequence.
std::vector<float> ReferenceAnswers(const Scene& scene, size_t start, size_t num_rows) {
  const Shape& shape = scene.shape();
  std::vector<float> y(shape.length * scene.y_stride(), reference::kNan);
  for (size_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const AttendCall call = scene.Call(kv_head, start, num_rows, y.data());
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t h = 0; h < shape.group; ++h) {
        const size_t head = kv_head * shape.group + h;
        ReferenceRow(scene, call, row, head, call.y + row * call.y_stride + head * shape.head_dim_v);
      }
    }
  }
  return y;
}

// Every way to compute rows [start, length) of a scene, on every target.
void CheckOneType(const Shape& shape, size_t start, uint32_t seed, const char* what) {
  Scene scene(shape, seed);
  const size_t num_rows = shape.length - start;
  const std::vector<float> expected = ReferenceAnswers(scene, start, num_rows);
  for (const Kernels* kernels : reference::TestedKernels()) {
    scene.Write(*kernels, 0, shape.length);
    for (const size_t step : {kMaxAttendRows, size_t{1}, 1 + scene.random().Below(20)}) {
      for (const size_t split : {size_t{0}, size_t{1}, size_t{2}}) {
        std::vector<float> y(expected.size(), reference::kNan);
        scene.Attend(*kernels, start, num_rows, step, split, y.data());
        reference::CheckSame(y, expected, what, kernels->target);
      }
    }
  }
}

// The cases below that name no type are cases of every type that has kernels of its own.
void CheckEveryWay(Shape shape, size_t start, uint32_t seed, const char* what) {
  CheckOneType(shape, start, seed, what);
  if (shape.type != CacheType::kF16) return;
  shape.type = CacheType::kBf16;
  CheckOneType(shape, start, seed, what);
  shape.type = CacheType::kInt8;
  if (shape.tokens_per_block % kInt8Tokens == 0) CheckOneType(shape, start, seed, what);
}

}  // namespace

TEST(CausalRowsHaveTheReferencesBits) {
  CheckEveryWay({.kv_heads = 2, .group = 3, .head_dim_k = 64, .head_dim_v = 64, .length = 300}, 230, 1, "causal");
  CheckEveryWay({.group = 4, .type = CacheType::kF32, .length = 70}, 0, 2, "causal from the first row");
  CheckEveryWay({.group = 1, .length = 530}, 500, 3, "one head");
}

TEST(NoBlockSizeMovesABit) {
  for (const size_t tokens : {1, 4, 8, 16, 32, 64, 128, 256}) {
    for (const CacheType type : {CacheType::kF16, CacheType::kF32}) {
      CheckEveryWay({.group = 2, .tokens_per_block = tokens, .type = type, .length = 290}, 270, 4, "blocks");
    }
  }
}

TEST(HeadsNeedNotBeWholeVectors) {
  for (const size_t width : {1, 8, 24, 40, 80, 100}) {
    CheckEveryWay({.kv_heads = 2, .group = 2, .head_dim_k = width, .head_dim_v = width, .length = 60}, 45, 5, "width");
    CheckEveryWay({.group = 3, .head_dim_k = 48, .head_dim_v = width, .type = CacheType::kF32, .length = 40}, 20, 6,
                  "values of another width");
  }
}

TEST(GroupsOfEverySize) {
  for (size_t group = 1; group <= 16; ++group) {
    CheckEveryWay({.group = group, .head_dim_k = 32, .head_dim_v = 96, .length = 70}, 64, 7, "group");
  }
}

TEST(WindowsEndWhereTheySay) {
  for (const size_t size : {1, 5, 16, 100, 255, 256, 257, 300}) {
    CheckEveryWay({.group = 2, .reach = Reach::kWindow, .reach_size = size, .length = 600}, 560, 8, "window");
  }
  CheckEveryWay({.group = 3, .reach = Reach::kWindow, .reach_size = 33, .length = 70}, 0, 9, "window from the start");
}

TEST(ChunksBeginWhereTheySay) {
  for (const size_t size : {1, 7, 64, 256, 300}) {
    CheckEveryWay({.group = 2, .reach = Reach::kChunk, .reach_size = size, .length = 620}, 585, 10, "chunk");
  }
}

TEST(RowsThatSeeAll) { CheckEveryWay({.group = 2, .reach = Reach::kAll, .length = 270}, 230, 11, "all"); }

TEST(SinksAndSoftcapsHaveTheReferencesBits) {
  CheckEveryWay({.kv_heads = 2, .group = 2, .has_sinks = true, .length = 300}, 270, 12, "sinks");
  CheckEveryWay({.group = 3, .softcap = 5.0f, .length = 280, .score_deviation = 8.0f}, 250, 13, "softcap");
  CheckEveryWay(
      {.group = 3, .reach = Reach::kWindow, .reach_size = 20, .softcap = 50.0f, .has_sinks = true, .length = 300}, 290,
      14, "all of it");
}

TEST(RowsThatAreStackedOverSharedTilesHaveTheReferencesBits) {
  for (const size_t num_shared : {size_t{1}, size_t{2}}) {
    for (const bool has_sinks : {false, true}) {
      Scene scene({.kv_heads = 2,
                   .group = 3,
                   .head_dim_k = 32,
                   .head_dim_v = 24,
                   .type = num_shared == 1 ? CacheType::kInt8 : CacheType::kF16,
                   .softcap = has_sinks ? 9.0f : 0.0f,
                   .has_sinks = has_sinks,
                   .length = 800},
                  20);
      std::vector<uint32_t> rows(29);
      for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = 799 - i * 9;  // the last of them sees two whole tiles
      std::vector<float> expected(800 * scene.y_stride(), reference::kNan);
      for (const uint32_t row : rows) {
        const std::vector<float> one = ReferenceAnswers(scene, row, 1);
        for (size_t c = row * scene.y_stride(); c < (row + 1) * scene.y_stride(); ++c) expected[c] = one[c];
      }
      for (const Kernels* kernels : reference::TestedKernels()) {
        scene.Write(*kernels, 0, 800);
        std::vector<float> y(expected.size(), reference::kNan);
        scene.AttendStacked(*kernels, rows, num_shared, y.data());
        reference::CheckSame(y, expected, "stacked", kernels->target);
      }
    }
  }
}

TEST(LargeScoresAndSmallWeights) {
  CheckEveryWay({.group = 2, .length = 560, .score_deviation = 60.0f}, 540, 15, "large scores");
}

TEST(NarrowestAndWidestHeadsOfEightBits) {
  for (const size_t width : {size_t{1}, size_t{17}, size_t{1009}, kMaxInt8Width}) {
    Shape shape = {.kv_heads = 2, .group = 2, .head_dim_k = width, .head_dim_v = kMaxInt8Width + 1 - width};
    shape.tokens_per_block = width == 1 ? 256 : 16;
    shape.type = CacheType::kInt8;
    shape.reach = width == 17 ? Reach::kWindow : Reach::kCausal;
    shape.reach_size = 37;
    shape.length = 270;
    CheckOneType(shape, 255, 21, "width");
  }
  CheckOneType({.group = 64, .head_dim_k = 24, .head_dim_v = 40, .type = CacheType::kInt8, .length = 265}, 250, 22,
               "group");
}

TEST(RandomCasesHaveTheReferencesBits) {
  Random random(16);
  for (uint32_t i = 0; i < 50; ++i) {
    Shape shape;
    shape.kv_heads = 1 + random.Below(2);
    shape.group = 1 + random.Below(8);
    shape.head_dim_k = 1 + random.Below(40);
    shape.head_dim_v = 8 * (1 + random.Below(9));
    shape.tokens_per_block = size_t{1} << random.Below(9);
    shape.type = static_cast<CacheType>(random.Below(kNumCacheTypes));
    if (shape.type == CacheType::kInt8) shape.tokens_per_block = std::max(shape.tokens_per_block, kInt8Tokens);
    shape.reach = static_cast<Reach>(random.Below(4));
    shape.reach_size = 1 + random.Below(400);
    shape.softcap = random.Below(4) == 0 ? 10.0f : 0.0f;
    shape.has_sinks = random.Below(3) == 0;
    shape.length = 1 + random.Below(600);
    CheckOneType(shape, shape.length - std::min(shape.length, 1 + random.Below(25)), 100 + i, "random");
  }
}

void CheckNanInLaterTokens(CacheType type) {
  Scene clean({.group = 3, .type = type, .length = 120}, 17);
  const std::vector<float> expected = ReferenceAnswers(clean, 60, 60);
  for (const Kernels* kernels : reference::TestedKernels()) {
    Scene scene({.group = 3, .type = type, .length = 120}, 17);
    std::fill(scene.v().begin() + 100 * static_cast<ptrdiff_t>(scene.v_stride()), scene.v().end(), reference::kNan);
    scene.Write(*kernels, 0, 120);
    std::vector<float> y(expected.size(), reference::kNan);
    scene.Attend(*kernels, 60, 60, 60, 0, y.data());
    const size_t end = 100 * scene.y_stride();
    reference::CheckSame({y.begin(), y.begin() + static_cast<ptrdiff_t>(end)},
                         {expected.begin(), expected.begin() + static_cast<ptrdiff_t>(end)}, "rows before",
                         kernels->target);
    CHECK(
        std::all_of(y.begin() + static_cast<ptrdiff_t>(end), y.end(), [](float number) { return std::isnan(number); }));
  }
}

TEST(LaterTokensOfAChunkMayBeNan) {
  for (size_t type = 0; type < kNumCacheTypes; ++type) CheckNanInLaterTokens(static_cast<CacheType>(type));
}

TEST(WrittenNumbersOfEightBitsHaveOneScaleAndNothingElseIsTouched) {
  for (const Kernels* kernels : reference::TestedKernels()) {
    Scene scene({.kv_heads = 2, .head_dim_k = 40, .head_dim_v = 23, .type = CacheType::kInt8, .length = 150}, 18);
    for (size_t c = 0; c < scene.v_stride(); ++c) scene.v()[50 * scene.v_stride() + c] = 0x1p-101f;
    scene.v()[60 * scene.v_stride() + 3] = reference::kInfinity;
    const std::vector<uint8_t> before = scene.pool();
    scene.Write(*kernels, 3, 4), scene.Write(*kernels, 7, 61), scene.Write(*kernels, 68, 1);
    bool same = true;
    for (size_t slot = 0; slot < 150; ++slot) {
      const bool is_written = slot >= 3 && slot < 69;
      for (size_t head = 0; head < 2; ++head) {
        for (size_t d = 0; d < 40; ++d) {
          same &= scene.Stored(slot, head, true, d) == (is_written ? scene.Key(slot, head, d) : 127.0f);
        }
        const float scale = is_written ? scene.KeyScale(slot, head) : reference::kNan;
        same &= reference::SameBits(scene.Stored(slot, head, true, 40), scale);
        if (slot == 60 && head == 0) {
          same &= std::isnan(scene.Stored(slot, head, false, 23));
          continue;
        }
        for (size_t c = 0; c < 23; ++c) {
          same &= scene.Stored(slot, head, false, c) == (is_written ? scene.Value(slot, head, c) : -1.0f);
        }
        const float value_scale = is_written ? scene.ValueScale(slot, head) : reference::kNan;
        same &= reference::SameBits(scene.Stored(slot, head, false, 23), value_scale);
      }
    }
    CHECK(same);
    // 66 slots of two heads, 40 and 23 numbers and two scales; where a number is written that was there before, 0xff,
    // no byte differs.
    size_t num_changed = 0;
    for (size_t i = 0; i < before.size(); ++i) num_changed += before[i] != scene.pool()[i];
    CHECK(num_changed > 66 * 2 * 60 && num_changed <= 66 * 2 * (40 + 23 + 8));
  }
}

TEST(WrittenNumbersAreRoundedOnceAndNothingElseIsTouched) {
  for (const CacheType type : {CacheType::kF16, CacheType::kF32, CacheType::kBf16}) {
    for (const size_t tokens : {1, 8, 16, 32, 64}) {
      for (const Kernels* kernels : reference::TestedKernels()) {
        Scene scene({.kv_heads = 2,
                     .head_dim_k = 40,
                     .head_dim_v = 23,
                     .tokens_per_block = tokens,
                     .type = type,
                     .length = 150},
                    18);
        scene.v()[70 * scene.v_stride() + 1] = 65519.99f;
        scene.v()[70 * scene.v_stride() + 2] = 65520.0f;
        scene.v()[70 * scene.v_stride() + 3] = 0x1.002p-14f;
        scene.v()[70 * scene.v_stride() + 4] = -0x1.8p-25f;
        scene.v()[70 * scene.v_stride() + 5] = 0x1p-25f;
        for (size_t start = 3, rows = 1; start + rows <= 150; start += rows, rows = rows * 2 + 1) {
          scene.Write(*kernels, start, rows);
        }
        bool same = true;
        for (size_t slot = 0; slot < 150; ++slot) {
          const bool written = slot >= 3 && slot < 3 + 1 + 3 + 7 + 15 + 31 + 63;
          for (size_t head = 0; head < 2; ++head) {
            for (size_t d = 0; d < 40; ++d) {
              same &= reference::SameBits(scene.Stored(slot, head, true, d),
                                          written ? scene.Key(slot, head, d) : reference::kNan);
            }
            for (size_t c = 0; c < 23; ++c) {
              same &= reference::SameBits(scene.Stored(slot, head, false, c),
                                          written ? scene.Value(slot, head, c) : reference::kNan);
            }
          }
        }
        CHECK(same);
      }
    }
  }
}

TEST(TheReferenceIsCloseToExactMathematics) {
  Scene scene({.group = 2, .head_dim_k = 64, .head_dim_v = 32, .length = 700}, 19);
  const std::vector<float> y = ReferenceAnswers(scene, 690, 10);
  const AttendCall call = scene.Call(0, 690, 10, nullptr);
  double worst = 0.0;
  for (size_t row = 0; row < 10; ++row) {
    for (size_t head = 0; head < 2; ++head) {
      std::vector<double> o(32, 0.0);
      double sum = 0.0;
      for (size_t slot = 0; slot <= 690 + row; ++slot) {
        double s = 0.0;
        for (size_t d = 0; d < 64; ++d)
          s += double{call.q[row * call.q_stride + head * 64 + d]} * scene.Key(slot, 0, d);
        const double p = std::exp(s * double{call.scale});
        sum += p;
        for (size_t c = 0; c < 32; ++c) o[c] += p * scene.Value(slot, 0, c);
      }
      for (size_t c = 0; c < 32; ++c) {
        worst = std::max(worst, std::fabs(o[c] / sum - y[(690 + row) * scene.y_stride() + head * 32 + c]));
      }
    }
  }
  CHECK(worst < 2e-6);  // the values are of size 1
}

}  // namespace plait
