#include "runtime/tape.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "runtime/tiny_model.h"

namespace plait {
namespace {

using testing::TinyKind;
using testing::TinyModel;

OpSpec& FirstOf(Tape& tape, OpKind kind) {
  for (OpSpec& op : tape.ops) {
    if (op.kind == kind) return op;
  }
  return tape.ops.back();
}

// Changes all ops of the mixture alike, so that they still follow one another.
template <typename OpChange>
void ChangeMixture(Tape& tape, const OpChange& change) {
  for (OpSpec& op : tape.ops) {
    if (op.kind == OpKind::kRoute || IsOfExperts(op.kind)) change(op);
  }
}

using Change = std::function<void(Tape&)>;

// Every change makes a tape that would write or read where it must not.
const std::vector<std::pair<std::string, Change>>& FloatFaults() {
  static const std::vector<std::pair<std::string, Change>> faults = {
      {"names buffer 999", [](Tape& tape) { FirstOf(tape, OpKind::kNorm).in[0].buffer = 999; }},
      {"names columns", [](Tape& tape) { FirstOf(tape, OpKind::kNorm).in[0].column = 1; }},
      {"another space", [](Tape& tape) { tape.ops.back().in[0].buffer = 0; }},
      {"another width", [](Tape& tape) { FirstOf(tape, OpKind::kGemm).out[1].width -= 1; }},
      {"names matrix", [](Tape& tape) { FirstOf(tape, OpKind::kGemm).matrix[1] = 99; }},
      {"names vector", [](Tape& tape) { FirstOf(tape, OpKind::kNorm).weight[0] = 99; }},
      {"bias of another width", [](Tape& tape) { tape.vectors[2].pop_back(); }},
      {"weight of another width", [](Tape& tape) { tape.vectors[0].pop_back(); }},
      {"divide into its parts", [](Tape& tape) { FirstOf(tape, OpKind::kNorm).parts = 7; }},
      {"no rope table", [](Tape& tape) { FirstOf(tape, OpKind::kRope).rope = 1; }},
      {"another size than it says", [](Tape& tape) { tape.ropes[0].cos.pop_back(); }},
      {"names cache group", [](Tape& tape) { FirstOf(tape, OpKind::kCacheWrite).group = kNone; }},
      {"a layer that its cache group", [](Tape& tape) { FirstOf(tape, OpKind::kAttend).layer = 3; }},
      {"other heads", [](Tape& tape) { FirstOf(tape, OpKind::kAttend).kv_heads = 1; }},
      {"every key", [](Tape& tape) { FirstOf(tape, OpKind::kAttend).reach = Reach::kAll; }},
      {"window of no tokens", [](Tape& tape) { FirstOf(tape, OpKind::kAttend).reach = Reach::kChunk; }},
      {"blocks that overlap", [](Tape& tape) { tape.groups[0].block_bytes -= 1; }},
      {"256 tokens", [](Tape& tape) { tape.groups[0].tokens_per_block = 24; }},
      {"more tokens than it has logits", [](Tape& tape) { tape.ops.back().vocab_size = 51; }},
      {"out of order", [](Tape& tape) { std::swap(tape.ops[0].space, tape.ops.back().space); }},
      {"do not begin with select", [](Tape& tape) { tape.first_output_op -= 1; }},
      {"does not end in sample", [](Tape& tape) { tape.ops.pop_back(); }},
      {"without output ops", [](Tape& tape) { tape.ops.clear(); }},
      {"has buffers that overlap", [](Tape& tape) { tape.buffers[1].first_byte = tape.buffers[0].first_byte; }},
      {"holds nothing",
       [](Tape& tape) { FirstOf(tape, OpKind::kNorm).in[0].buffer = FirstOf(tape, OpKind::kGemm).in[0].buffer; }},
      // The residual stream, written by what is computed in between.
      {"nothing any more", [](Tape& tape) { tape.buffers[3].first_byte = tape.buffers[0].first_byte; }},
      {"overlap", [](Tape& tape) { tape.groups[0].head_bytes -= 4; }},
      {"whole sixteens",
       [](Tape& tape) { tape.groups[0].type = CacheType::kInt8, tape.groups[0].tokens_per_block = 8; }},
      {"too wide for 8 bits",
       [](Tape& tape) {
         GroupSpec& group = tape.groups[0];
         group.type = CacheType::kInt8, group.tokens_per_block = 16, group.head_dim_k = 1040;
         group.head_bytes = group.layer_bytes = group.block_bytes = 1 << 20;
         group.layer_bytes *= group.kv_heads, group.block_bytes = group.layer_bytes * group.num_layers;
       }},
      {"scales out of line",
       [](Tape& tape) {
         GroupSpec& group = tape.groups[0];
         group.type = CacheType::kInt8, group.tokens_per_block = 16, group.block_bytes += 1 << 20,
         group.block_bytes |= 1;
       }},
      {"pools twice",
       [](Tape& tape) { FirstOf(tape, OpKind::kNorm).kind = FirstOf(tape, OpKind::kGemm).kind = OpKind::kPool; }},
      {"(pool) is not in the space of outputs", [](Tape& tape) { FirstOf(tape, OpKind::kNorm).kind = OpKind::kPool; }},
      {"cache line", [](Tape& tape) { tape.buffers[0].first_byte = 4; }},
  };
  return faults;
}

void CheckFault(const TinyModel& model, const std::string& expected, const Change& change) {
  Tape tape = model.tape();
  change(tape);
  const std::string fault = TapeFault(tape);
  if (fault.find(expected) == std::string::npos) CHECK_EQ(fault, expected);
}

}  // namespace

TEST(ATapeThatCannotBeCarriedOutIsRefused) {
  const TinyModel model(TinyKind::kFloats);
  CHECK_EQ(TapeFault(model.tape()), "");
  for (const auto& [expected, change] : FloatFaults()) CheckFault(model, expected, change);
}

TEST(ATapeThatMixesFloatsAndQuantisedRowsIsRefused) {
  const TinyModel model(TinyKind::kIntegers);
  CHECK_EQ(TapeFault(model.tape()), "");
  CheckFault(model, "quantised buffer for floats",
             [](Tape& tape) { std::swap(FirstOf(tape, OpKind::kNorm).out[0], FirstOf(tape, OpKind::kNorm).out[1]); });
  CheckFault(model, "floats for a quantised buffer",
             [](Tape& tape) { FirstOf(tape, OpKind::kGemm).in[0] = FirstOf(tape, OpKind::kEmbed).out[0]; });
  CheckFault(model, "different shapes", [](Tape& tape) { FirstOf(tape, OpKind::kGemmGlu).matrix[1] = 0; });
  CheckFault(model, "not a whole number of groups", [](Tape& tape) { tape.buffers[1].width = 60; });
  CheckFault(model, "groups of another size", [](Tape& tape) { tape.buffers[1].group_size = 64; });
  CheckFault(model, "rows in other groups", [](Tape& tape) {
    tape.buffers[static_cast<size_t>(FirstOf(tape, OpKind::kGemm).in[0].buffer)].group_size = kWideGroupSize;
  });
  CheckFault(model, "columns of a KV head are not whole groups", [](Tape& tape) {
    tape.buffers[static_cast<size_t>(FirstOf(tape, OpKind::kAttend).out[1].buffer)].group_size = kWideGroupSize;
  });
}

TEST(AShiftThatCannotBeCarriedOutIsRefused) {
  TinyModel model(TinyKind::kFloats);
  model.AddRecurrence();
  const std::vector<std::pair<std::string, Change>> faults = {
      {"not whole rows side by side", [](Tape& tape) { FirstOf(tape, OpKind::kShift).out[0].width -= 1; }},
      {"weight of another size", [](Tape& tape) { FirstOf(tape, OpKind::kShift).weight[0] = 0; }},
      {"writes into its input",
       [](Tape& tape) { FirstOf(tape, OpKind::kShift).in[0].buffer = FirstOf(tape, OpKind::kShift).out[0].buffer; }},
      {"more inputs than its kind", [](Tape& tape) { FirstOf(tape, OpKind::kShift).in[1].buffer = 0; }},
      {"takes keys and values for states", [](Tape& tape) { FirstOf(tape, OpKind::kShift).group = 0; }},
      {"that its cache group does not hold", [](Tape& tape) { FirstOf(tape, OpKind::kShift).state_begin = SIZE_MAX; }},
  };
  for (const auto& [expected, change] : faults) CheckFault(model, expected, change);
}

TEST(AScanOfRwkv7ThatCannotBeCarriedOutIsRefused) {
  TinyModel model(TinyKind::kFloats);
  model.AddRecurrence();
  const auto as_rwkv7 = [](Tape& tape) -> OpSpec& {
    OpSpec& op = FirstOf(tape, OpKind::kScan);
    op.scan = ScanKind::kRwkv7;
    return op;
  };
  CheckFault(model, "heads of a width that it cannot have", [&](Tape& tape) { as_rwkv7(tape); });
  CheckFault(model, "another width",
             [&](Tape& tape) { as_rwkv7(tape).head_dim_v = FirstOf(tape, OpKind::kScan).head_dim_k; });
}

TEST(ARecurrenceThatCannotBeCarriedOutIsRefused) {
  TinyModel model(TinyKind::kFloats);
  model.AddRecurrence();
  CHECK_EQ(TapeFault(model.tape()), "");
  const std::vector<std::pair<std::string, Change>> faults = {
      {"fewer taps than two", [](Tape& tape) { FirstOf(tape, OpKind::kConv).taps = 1; }},
      {"more than there may be", [](Tape& tape) { FirstOf(tape, OpKind::kConv).taps = kMostTaps + 1; }},
      {"weight of another size", [](Tape& tape) { FirstOf(tape, OpKind::kConv).taps = 2; }},
      {"bias of another width",
       [](Tape& tape) { FirstOf(tape, OpKind::kConv).bias = FirstOf(tape, OpKind::kConv).weight[0]; }},
      {"writes into its input",
       [](Tape& tape) { FirstOf(tape, OpKind::kConv).out[0] = FirstOf(tape, OpKind::kConv).in[0]; }},
      {"more inputs than its kind", [](Tape& tape) { FirstOf(tape, OpKind::kConv).in[1].buffer = 0; }},
      {"takes keys and values for states", [](Tape& tape) { FirstOf(tape, OpKind::kScan).group = 0; }},
      {"of states for keys and values", [](Tape& tape) { FirstOf(tape, OpKind::kAttend).group = 1; }},
      {"a layer that its cache group", [](Tape& tape) { FirstOf(tape, OpKind::kScan).layer = 1; }},
      {"that its cache group does not hold", [](Tape& tape) { FirstOf(tape, OpKind::kScan).state_begin += 1; }},
      {"that its cache group does not hold", [](Tape& tape) { FirstOf(tape, OpKind::kScan).state_begin = SIZE_MAX; }},
      {"heads by its groups", [](Tape& tape) { FirstOf(tape, OpKind::kScan).kv_heads = 3; }},
      {"heads by its groups", [](Tape& tape) { FirstOf(tape, OpKind::kScan).head_dim_k = 0; }},
      {"another width", [](Tape& tape) { FirstOf(tape, OpKind::kScan).in[2].width -= 1; }},
      {"names buffer", [](Tape& tape) { FirstOf(tape, OpKind::kScan).in[3].buffer = kNone; }},
      {"weight of another size", [](Tape& tape) { FirstOf(tape, OpKind::kScan).weight[2] = 0; }},
      {"of a kind that there is not",
       [](Tape& tape) { FirstOf(tape, OpKind::kScan).scan = static_cast<ScanKind>(99); }},
      {"states of another type", [](Tape& tape) { tape.groups[1].type = CacheType::kF16; }},
      {"states out of line", [](Tape& tape) { tape.groups[1].block_bytes += 2; }},
      {"blocks that overlap", [](Tape& tape) { tape.groups[1].block_bytes = tape.groups[1].layer_bytes - 4; }},
      {"is empty", [](Tape& tape) { tape.groups[1].num_layers = 0; }},
  };
  for (const auto& [expected, change] : faults) CheckFault(model, expected, change);
}

TEST(AMixtureWhoseOpsDoNotFitEachOtherIsRefused) {
  for (const TinyKind kind : {TinyKind::kFloats, TinyKind::kIntegers}) {
    const TinyModel model(kind);
    CheckFault(model, "chooses more experts than there are",
               [](Tape& tape) { ChangeMixture(tape, [](OpSpec& op) { op.top_k = 6; }); });
    CheckFault(model, "more experts than possible",
               [](Tape& tape) { ChangeMixture(tape, [](OpSpec& op) { op.experts = kMaxExperts + 1; }); });
    CheckFault(model, "names matrix", [](Tape& tape) { ChangeMixture(tape, [](OpSpec& op) { op.matrix[2] = 999; }); });
    CheckFault(model, "do not lead back",
               [](Tape& tape) { ChangeMixture(tape, [](OpSpec& op) { op.matrix[2] = op.matrix[0]; }); });
    CheckFault(model, "downs of different shapes", [](Tape& tape) {
      tape.matrices[static_cast<size_t>(FirstOf(tape, OpKind::kExpertsGlu).matrix[2]) + 1].columns -= 1;
    });
    CheckFault(model, "biases of another size", [](Tape& tape) {
      tape.vectors[static_cast<size_t>(FirstOf(tape, OpKind::kExpertsGlu).weight[2])].pop_back();
    });
    // Rows are handed on outside of all buffers: by these ops, in this order, for what was routed last.
    CheckFault(model, "(experts_glu) is out of order",
               [](Tape& tape) { FirstOf(tape, OpKind::kExpertsOut).matrix[0] += 1; });
    CheckFault(model, "(experts_glu) is out of order", [](Tape& tape) { FirstOf(tape, OpKind::kRoute).top_k = 1; });
    CheckFault(model, "(experts_glu) is out of order", [](Tape& tape) {
      std::swap(FirstOf(tape, OpKind::kExpertsOut).kind, FirstOf(tape, OpKind::kExpertsMix).kind);
    });
    CheckFault(model, "(experts_mix) is out of order",
               [](Tape& tape) { FirstOf(tape, OpKind::kExpertsGlu).kind = OpKind::kExpertsMix; });
  }
  CheckFault(TinyModel(TinyKind::kFloats), "as only experts do",
             [](Tape& tape) { FirstOf(tape, OpKind::kGlu).activation = Activation::kClampedSwish; });
}

TEST(BuffersAreAsLargeAsTheirRows) {
  CHECK_EQ(BufferRowBytes({Space::kTokens, 0, 576, 0}), 2304u);
  CHECK_EQ(BufferRowBytes({Space::kTokens, 0, 1, 0}), 64u);
  CHECK_EQ(BufferRowBytes({Space::kTokens, kGroupSize, 576, 0}), 896u);  // 18 * 48 = 864
  CHECK_EQ(BufferRowBytes({Space::kTokens, kWideGroupSize, 576, 0}), 896u);
  Tape tape;
  tape.buffers = {{Space::kTokens, 0, 16, 0}, {Space::kTokens, 0, 16, 128}, {Space::kOutputs, 0, 32, 0}};
  CHECK_EQ(tape.ArenaRowBytes(Space::kTokens), 192u);
  CHECK_EQ(tape.ArenaRowBytes(Space::kOutputs), 128u);
}

}  // namespace plait
