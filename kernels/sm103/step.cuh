// The ends of a step, a small launch each where a framework's own operators are a dozen: what it
// hands over, as the launches of the layers read it, and what its head reads of the stream.
#pragma once

#include "rowwise.cuh"

namespace muse {

// At most. The host build makes a stack for every thread.
constexpr uint32_t kEndThreads = 512, kBeginBlocks = ptx::kSlow ? 2 : 128;

MEGATRACE_DEVICE uint64_t integer(const Integers& from, uint32_t i) {
  if (i >= from.count) ptx::misuse("a position, request or slot that the pools do not have");
  return from.bytes == 8 ? static_cast<const uint64_t*>(from.at)[i]
                         : static_cast<const uint32_t*>(from.at)[i];
}

// The slot of every position up to the step's last row, in each pool. The rows' own slots are told
// apart from the table, which may be written after the step that they are for.
__global__ void __launch_bounds__(kEndThreads) begin_step(const __grid_constant__ StepInputs in) {
  ptx::launch_dependents();
  ptx::dependency_wait();
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint64_t request = integer(in.request, 0), first = integer(in.positions, 0);
  if (request >= in.requests || first > in.width || in.rows > in.width - first)
    ptx::misuse("a request or position that the table of slots does not have");
  const uint32_t context = static_cast<uint32_t>(first), end = context + in.rows;
  if (thread == 0) *in.context = static_cast<int32_t>(context);
  if (thread < in.rows) in.to_tokens[thread] = static_cast<int32_t>(integer(in.tokens, thread));
  const int32_t* row = in.table + request * in.width;
  for (uint32_t at = thread; at < end; at += gridDim.x * blockDim.x) {
    const uint32_t slot =
        static_cast<uint32_t>(at < context ? uint64_t(row[at]) : integer(in.slots, at - context));
    in.full[at] = static_cast<int32_t>(slot);
    if (in.sliding != nullptr) in.sliding[at] = static_cast<int32_t>(integer(in.to_sliding, slot));
  }
}

// The norm before the head, of the stream as bf16. A block a row.
__global__ void __launch_bounds__(kEndThreads) end_step(const __grid_constant__ StepOutput out) {
  ptx::dependency_wait();
  const uint32_t vectors = out.hidden / 4, lane = ptx::lane_id(), warp = threadIdx.x / 32;
  const float4* stream = vectors_of(out.stream) + size_t{blockIdx.x} * vectors;
  float sum = 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) sum += squares(rounded(stream[i]));
  float* const sums = reinterpret_cast<float*>(ptx::dynamic_shared());
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  sum = warp_sum(lane < blockDim.x / 32 ? sums[lane] : 0.0f);
  const float scale = rms_scale(sum, reciprocal(static_cast<float>(out.hidden)), out.eps);
  uint2* const to = reinterpret_cast<uint2*>(out.normed) + size_t{blockIdx.x} * vectors;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x)
    to[i] = pack(rounded(stream[i]) * scale * vectors_of(out.gain)[i]);
}

}  // namespace muse
