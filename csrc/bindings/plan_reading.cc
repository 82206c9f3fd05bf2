// Reading plans: the attributes of a step, chunk by chunk.
//
// Owns nothing but the conversion. No Python code runs here but attribute look-ups of frozen dataclasses.
// Invariant: indices that the runtime follows without a check are checked here, if Python's roster does not look at
// them.

#include "bindings/plan_reading.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

#include "bindings/arguments.h"

namespace nb = nanobind;

namespace plait {
namespace {

constexpr uint64_t kMaxPosition = std::numeric_limits<int32_t>::max();
constexpr const char* kSampleKind = "sample";
constexpr const char* kPoolKind = "pool";

nb::tuple Tuple(const nb::object& value, const char* name) {
  if (!PyTuple_Check(value.ptr())) throw nb::type_error((std::string(name) + " is not a tuple").c_str());
  return nb::borrow<nb::tuple>(value);
}

std::vector<int32_t> ReadIndices(const nb::object& values, const char* name) {
  const nb::tuple parts = Tuple(values, name);
  std::vector<int32_t> indices(parts.size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = CheckedIndex(parts[i], name);
  return indices;
}

void AppendIndices(nb::handle values, const char* name, std::vector<int32_t>& indices) {
  for (const int32_t index : ReadIndices(nb::borrow(values), name)) indices.push_back(index);
}

double Number(nb::handle of, const char* name) { return nb::cast<double>(nb::getattr(of, name)); }

void CheckSize(const char* what, size_t count, size_t expected) {
  if (count == expected) return;
  ThrowValueError(std::to_string(count) + " " + what + " for " + std::to_string(expected));
}

}  // namespace

JoinSpec PlanReader::ReadJoin(nb::handle join) const {
  JoinSpec spec;
  spec.sampling = ReadSampling(nb::getattr(join, "params"), nb::getattr(join, "eos_token_ids"));
  spec.seed = CheckedNumber<uint64_t>(nb::getattr(join, "seed"), "seed");
  spec.choice = CheckedNumber<uint32_t>(nb::getattr(join, "choice"), "choice");
  spec.num_prompt = CheckedSigned(nb::getattr(join, "num_prompt"), "num_prompt", 0, kMaxPosition);
  spec.history = ReadIndices(nb::getattr(join, "history"), "history");
  return spec;
}

SamplingSpec PlanReader::ReadSampling(nb::handle params, nb::handle end_tokens) const {
  SamplingSpec spec;
  spec.temperature = Number(params, "temperature");
  // A filter that keeps more tokens than any vocabulary has keeps them all.
  spec.top_k = static_cast<int32_t>(std::min<uint64_t>(CheckedNumber<uint64_t>(nb::getattr(params, "top_k"), "top_k"),
                                                       std::numeric_limits<int32_t>::max()));
  spec.top_p = Number(params, "top_p");
  spec.min_p = Number(params, "min_p");
  spec.repetition_penalty = Number(params, "repetition_penalty");
  spec.frequency_penalty = Number(params, "frequency_penalty");
  spec.presence_penalty = Number(params, "presence_penalty");
  spec.min_tokens = static_cast<int64_t>(
      std::min<uint64_t>(CheckedNumber<uint64_t>(nb::getattr(params, "min_tokens"), "min_tokens"), kMaxPosition));
  const nb::object logprobs = nb::getattr(params, "logprobs");
  if (!logprobs.is_none()) spec.logprobs = CheckedIndex(logprobs, "logprobs");
  for (nb::handle pair : Tuple(nb::getattr(params, "logit_bias"), "logit_bias")) {
    const nb::tuple parts = Tuple(nb::borrow(pair), "a pair of logit_bias");
    CheckSize("parts", parts.size(), 2);
    spec.logit_bias.emplace_back(CheckedIndex(parts[0], "token of logit_bias"), nb::cast<double>(parts[1]));
  }
  AppendIndices(end_tokens, "eos_token_ids", spec.end_tokens);
  AppendIndices(nb::getattr(params, "stop_token_ids"), "stop_token_ids", spec.end_tokens);
  return spec;
}

StepSpec PlanReader::ReadPlan(nb::handle plan, nb::list seats, nb::list grant_seats) const {
  StepSpec step;
  step.step = CheckedSigned(step_.of(plan), "step", 0, std::numeric_limits<int64_t>::max());
  step.lane = CheckedNumber<uint32_t>(lane_.of(plan), "lane");
  const nb::tuple grants = Tuple(blocks_.of(plan), "blocks");
  const nb::tuple moves = Tuple(moves_.of(plan), "moves");
  const nb::tuple chunks = Tuple(chunks_.of(plan), "chunks");
  CheckSize("seats of grants", grant_seats.size(), grants.size());
  CheckSize("seats of chunks", seats.size(), chunks.size());
  step.grants.reserve(grants.size());
  for (size_t i = 0; i < grants.size(); ++i) {
    const nb::handle grant = grants[i];
    step.grants.push_back({SeatOf(grant_seats[i]), ReadGroup(grant), CheckedNumber<uint32_t>(first_.of(grant), "first"),
                           ReadIndices(blocks_.of(grant), "blocks")});
  }
  for (nb::handle move : moves) step.moves.push_back(ReadMove(move));
  step.chunks.reserve(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    ChunkSpec& chunk = step.chunks.emplace_back(ReadChunk(chunks[i]));
    chunk.seat = SeatOf(seats[i]);
  }
  ReadMasks(sampling_.of(plan), step);
  return step;
}

ChunkSpec PlanReader::ReadChunk(nb::handle chunk) const {
  ChunkSpec spec;
  spec.seq = CheckedSigned(seq_.of(chunk), "seq", 0, std::numeric_limits<int64_t>::max());
  spec.start = CheckedSigned(start_.of(chunk), "start", 0, kMaxPosition);
  spec.num_tokens = CheckedNumber<uint32_t>(num_tokens_.of(chunk), "num_tokens");
  const nb::object tokens = tokens_.of(chunk);
  // Tokens are a tuple, or the mark that stands for the one that was sampled last.
  spec.from_device = !PyTuple_Check(tokens.ptr());
  if (!spec.from_device) spec.tokens = ReadIndices(tokens, "tokens");
  const nb::object drafts = drafts_.of(chunk);
  if (!drafts.is_none()) {
    const size_t num_known = spec.tokens.size();
    AppendIndices(ids_.of(drafts), "drafts", spec.tokens);
    spec.num_drafts = static_cast<uint32_t>(spec.tokens.size() - num_known);
  }
  CheckSize("tokens", spec.tokens.size() + (spec.from_device ? 1 : 0), spec.num_tokens);
  const nb::object positions = positions_.of(chunk);
  if (!positions.is_none()) {
    spec.positions = ReadIndices(positions, "positions");
    CheckSize("positions", spec.positions.size(), spec.num_tokens);
  }
  for (nb::handle output : Tuple(outputs_.of(chunk), "outputs")) spec.outputs.push_back(ReadOutput(output));
  for (nb::handle snapshot : Tuple(snapshots_.of(chunk), "snapshots")) {
    spec.snapshots.push_back(ReadSnapshot(snapshot));
  }
  std::ranges::stable_sort(spec.snapshots, {}, &SnapshotSpec::offset);
  return spec;
}

OutputSpec PlanReader::ReadOutput(nb::handle output) const {
  OutputSpec spec;
  spec.first = CheckedNumber<uint32_t>(first_.of(output), "first");
  spec.num_rows = CheckedNumber<uint32_t>(num_rows_.of(output), "num_rows");
  if (PyUnicode_CompareWithASCIIString(kind_.of(output).ptr(), kSampleKind) == 0) return spec;
  if (PyUnicode_CompareWithASCIIString(kind_.of(output).ptr(), kPoolKind) == 0) {
    spec.kind = OutputKind::kPool;
    return spec;
  }
  spec.kind = OutputKind::kLogprobs;
  spec.targets = ReadIndices(targets_.of(output), "targets");
  spec.top = CheckedNumber<uint32_t>(top_.of(output), "top");
  CheckSize("targets", spec.targets.size(), spec.num_rows);
  return spec;
}

MoveSpec PlanReader::ReadMove(nb::handle move) const {
  MoveSpec spec;
  spec.group = ReadGroup(move);
  spec.src_block = CheckedIndex(nb::getattr(move, "src_block"), "src_block");
  spec.src_slot = CheckedNumber<uint32_t>(nb::getattr(move, "src_slot"), "src_slot");
  spec.dst_block = CheckedIndex(nb::getattr(move, "dst_block"), "dst_block");
  spec.dst_slot = CheckedNumber<uint32_t>(nb::getattr(move, "dst_slot"), "dst_slot");
  spec.num_tokens = CheckedNumber<uint32_t>(nb::getattr(move, "num_tokens"), "num_tokens");
  return spec;
}

SnapshotSpec PlanReader::ReadSnapshot(nb::handle snapshot) const {
  SnapshotSpec spec;
  spec.offset = CheckedNumber<uint32_t>(nb::getattr(snapshot, "offset"), "offset");
  spec.group = ReadGroup(snapshot);
  spec.block = CheckedIndex(nb::getattr(snapshot, "block"), "block");
  return spec;
}

void PlanReader::ReadMasks(nb::handle masks, StepSpec& step) const {
  const nb::tuple parts = Tuple(nb::borrow(masks), "sampling");
  if (parts.size() == 0) return;
  std::unordered_map<int64_t, size_t> chunk_of;
  for (size_t i = 0; i < step.chunks.size(); ++i) chunk_of[step.chunks[i].seq] = i;
  for (nb::handle mask : parts) {
    const auto found = chunk_of.find(CheckedSigned(seq_.of(mask), "seq", 0, std::numeric_limits<int64_t>::max()));
    if (found == chunk_of.end()) ThrowValueError("a mask names a sequence that the step does not have");
    const auto allowed = nb::cast<nb::bytes>(allowed_.of(mask));
    const auto* const bits = static_cast<const uint8_t*>(allowed.data());
    step.chunks[found->second].masks.push_back(
        {CheckedNumber<uint32_t>(row_.of(mask), "row"), std::vector<uint8_t>(bits, bits + allowed.size())});
  }
}

const SeatRef& PlanReader::SeatOf(nb::handle handle) const {
  const auto& seat = nb::cast<const SeatHandle&>(handle);
  if (seat.runtime != runtime_) ThrowValueError("a seat of another runtime; join the sequence here");
  return seat.seat;
}

size_t PlanReader::ReadGroup(nb::handle of) const {
  if (num_groups_ == 0) ThrowValueError("this model has no cache groups");
  return CheckedUnsigned(group_.of(of), "group", num_groups_ - 1);
}

}  // namespace plait
