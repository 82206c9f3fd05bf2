// Tiny model: a tape of three layers, one of them with a mixture of experts, with every kind of op, and an interpreter that answers for one sequence alone.
//
// Owns the model and its weights for the tests of runtime/. The interpreter walks the same tape with whole ops, one
// thread and its own memory: what it gives is what the runtime must give under every load, bit for bit.
// Invariant: a model is a function of its kind and seed.

#ifndef PLAIT_CSRC_RUNTIME_TINY_MODEL_H_
#define PLAIT_CSRC_RUNTIME_TINY_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"
#include "ops/kernels.h"
#include "runtime/runtime.h"
#include "runtime/tape.h"

namespace plait::testing {

inline constexpr size_t kTinyVocab = 50;
inline constexpr size_t kTinyBlock = 16;  // tokens per block
inline constexpr size_t kTinyBlocks = 192;
inline constexpr size_t kTinyPositions = 2048;

enum class TinyKind {
  kFloats,    // f32 weights, f32 cache, ops apart from one another
  kIntegers,  // 8-bit weights, f16 cache, ops fused and outputs quantised
  kOwn,       // the same in our own scheme, with wide groups, that no KV head's columns are
};

class TinyModel {
 public:
  explicit TinyModel(TinyKind kind, uint64_t seed = 1);

  const Tape& tape() const { return tape_; }
  size_t pool_bytes() const { return tape_.groups[0].num_blocks * tape_.groups[0].block_bytes; }
  // Row `token` of the embedding becomes NaN.
  void SpoilToken(int32_t token);
  // The rows in front of the head can be pooled from now on.
  void AddPool();

 private:
  int32_t AddMatrix(size_t columns, size_t depth, float size);
  int32_t AddVector(size_t size, float around, float size_of);
  size_t GroupSize() const;  // of quantised rows; 0: floats
  Operand AddBuffer(Space space, size_t width, size_t group_size = 0);
  void AddLayer(uint32_t layer, const Operand& x);
  void AddExperts(const Operand& x, const Operand& normed);
  void AddHead(const Operand& x);
  OpSpec& Add(OpKind kind);
  float NextNumber();

  TinyKind kind_;
  uint64_t state_;
  Tape tape_;
  std::vector<AlignedBuffer> panels_;
};

// The best kernels that this processor has.
const Kernels& KernelsHere();

// Logits [num tokens][kTinyVocab] of a sequence, computed alone.
class Interpreter {
 public:
  Interpreter(const TinyModel& model, const Kernels& kernels);
  std::vector<std::vector<float>> Logits(const std::vector<int32_t>& tokens) const;
  // The prompt continued greedily: the `count` tokens that follow.
  std::vector<int32_t> Greedy(std::vector<int32_t> tokens, size_t count) const;

 private:
  const TinyModel& model_;
  const Kernels& kernels_;
};

}  // namespace plait::testing

#endif  // PLAIT_CSRC_RUNTIME_TINY_MODEL_H_
