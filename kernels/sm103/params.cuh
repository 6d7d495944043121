// What one launch of the layer kernel is told. megatrace/muse/params.py mirrors these structs.
//
// A launch is a stretch of phases of layer i and the first phases of layer i + 1: it begins with
// the attention of layer i, whose q, k and v the launch before has made, and ends with the
// QKV projection of layer i + 1.
#pragma once

#include <cstdint>

namespace muse {

constexpr uint32_t kHeadDim = 64;
constexpr uint32_t kMaxRows = 16;  // of a step: decode or verify
constexpr uint32_t kMaxRanks = 8;

// In the order a launch runs them. The fused kernel runs all of a layer, the twin one a launch.
enum Phase : uint32_t {
  kEmbed,           // token -> stream, input of layer 0 (first launch of a step only)
  kAttention,       // a chunk of keys -> partial sums
  kAttentionMerge,  // all chunks -> normed, gated heads
  kOProj,
  kAttnBoundary,  // all-reduce, residual, input of router and experts
  kRouter,        // router logits and pre-expert projection
  kRoute,         // top-k, normed expert input
  kExpertsUp,     // gate and up, SwiGLU
  kExpertsDown,
  kExpertSum,  // norm a token and slot, weighted sum, all-reduce
  kPostProj,
  kFfnBoundary,  // residual, input of layer i + 1
  kQkv,          // of layer i + 1
  kQkvFinish,    // q/k norm, RoPE, KV write
  kPhases
};

struct Shape {
  uint32_t rows;           // of this step, 1..kMaxRows
  uint32_t hidden;         // H
  uint32_t heads;          // query heads of this rank
  uint32_t kv_heads;       // of this rank
  uint32_t experts;        // routed, of the model
  uint32_t local_experts;  // of this rank
  uint32_t first_expert;   // the first of them
  uint32_t top_k;
  uint32_t expert_width;  // h: what an expert reads and writes
  uint32_t expert_inner;  // I
  uint32_t pre_rows;      // rows of the pre-expert projection on this rank: h or h / ranks
  uint32_t post_rows;     // of the post-expert projection: H or H / ranks
  uint32_t rank, ranks;
  uint32_t max_splits;  // of the attention, chunks of keys a kv head
  float eps_norm, eps_post;
  float output_multiplier;  // m: scales router logits
  float route_scale;
  float softmax_scale;
};

// Weights packed by megatrace/muse/pack.py. Gains are bf16(w + 1).
struct LayerWeights {
  const char* o_proj;
  const char* router;  // fp32
  const char* pre_proj;
  const char* experts_up;    // [local_experts], gate and up rows interleaved by eight
  const char* experts_down;  // [local_experts]
  const char* post_proj;
  const char* next_qkv;      // of layer i + 1, rows [q | k | v | gate]
  const float* up_scale;     // [local_experts][2], of the gate and of the up rows; NVFP4 only
  const float* down_scale;   // [local_experts]; NVFP4 only
  const float* router_bias;  // [experts], selects only
  const float* attn_alpha;   // [H] residual gate after attention: S <- alpha S + beta n
  const float* attn_beta;
  const float* ffn_alpha;  // [H]
  const float* ffn_beta;
  const uint16_t* pre_ffn_gain;      // [H] bf16
  const uint16_t* pre_expert_gain;   // [h]
  const uint16_t* post_expert_gain;  // [h]
  const uint16_t* post_ffn_gain;     // [H]
  const uint16_t* next_input_gain;   // [H], of layer i + 1
};

// The paged keys and values of one layer. Slot s of head j starts at element
// (s * kv_heads + j) * 64.
struct KvCache {
  uint16_t* keys;  // each one bf16, or two e4m3, as the build has it
  uint16_t* values;
  const int32_t* slots;    // [context + rows], position -> slot of this layer's pool
  const float* rope;       // [positions][64] cos(32) | sin(32), null: no position encoding
  uint32_t window;         // keys a query sees, itself included; 0: all
  uint32_t element_bytes;  // of keys and values, 0 where there are none: the host's check
};

// Words that one block writes and others poll: kEmpty until written, written once a launch.
// All of a launch lie in one stretch, emptied by the launch before.
struct Handoff {
  uint32_t* attn_out;     // [max_splits][rows][heads][64] fp32, not divided by the sum
  uint32_t* attn_sum;     // [max_splits][rows][heads][2] fp32: maximum (log2 domain), sum
  uint32_t* heads;        // [rows][heads * 64 / 2] bf16 pairs
  uint32_t* o_part;       // [slices of heads * 64][rows][H] fp32
  uint32_t* x;            // [rows][H / 2] bf16 pairs
  uint32_t* router_part;  // [slices of H][rows][experts] fp32
  uint32_t* pre_part;     // [slices of H][rows][pre_rows] fp32
  uint32_t* y;            // [rows][h / 2] bf16 pairs
  uint32_t* ids;          // [rows][top_k] experts, ascending slot j
  uint32_t* weights;      // [rows][top_k] fp32
  uint32_t* act;          // [rows * top_k][I / 2] bf16 pairs, local pairs only
  uint32_t* down;         // [rows * top_k][h / 2] bf16 pairs, local pairs only
  uint32_t* sum;          // [rows][h / 2] bf16 pairs
  uint32_t* post_part;    // [slices of h][rows][post_rows] fp32
  uint32_t* a;            // [rows][H / 2] bf16 pairs
  uint32_t* qkv_part;     // [slices of H][rows][(2 heads + 2 kv_heads) * 64] fp32
  // Sums of squares over columns of a row, fp32; over 128 of them, but for down_sums:
  uint32_t* row_sums;    // [2][2][rows][H / 128]: at both gates, of the branch and the stream
  uint32_t* input_sums;  // [rows][h / 128], of the expert input
  uint32_t* down_sums;   // [rows * top_k][h / 16], a down tile each, local pairs only
};

// Sends rows of bf16 pairs to every other rank and receives theirs. in[r] is where rank r's row
// arrives here, out[r] where this rank's row arrives at rank r; both [rows][words a row].
struct Exchange {
  const uint32_t* in[kMaxRanks];
  uint32_t* out[kMaxRanks];
};

struct Params {
  Shape shape;
  LayerWeights weights;
  KvCache kv;       // of layer i
  KvCache next_kv;  // of layer i + 1
  Handoff handoff;
  uint4* next_handoff;            // to be emptied for the next launch
  uint32_t next_handoff_vectors;  // of 16 bytes
  uint32_t layer;                 // i
  Exchange attn_reduce;           // [rows][H / 2]: sums over ranks
  Exchange expert_reduce;         // [rows][h / 2]: sums over ranks
  Exchange pre_gather;        // [rows][pre_rows / 2]: columns side by side; unused unless sharded
  Exchange post_gather;       // [rows][post_rows / 2]
  float* stream;              // [rows][H], the residual
  uint16_t* q;                // [rows][heads * 64] bf16, normed and rotated
  uint16_t* gate;             // [rows][heads * 64] bf16
  uint16_t* tap;              // [rows][tap_stride] bf16(stream) after this layer, or null
  uint32_t* routes;           // [rows][top_k] experts of this layer, for whoever counts, or null
  const int32_t* context;     // one word: keys in the cache before the first row of this step
  const int32_t* tokens;      // [rows], for kEmbed
  const uint16_t* embedding;  // [vocabulary][H] bf16, for kEmbed
  uint32_t tap_stride;
  uint32_t phases;  // one bit a phase: what this launch runs
  uint32_t early;   // 1: at least two launches of the step came before this one
  uint32_t unused;
};

// Whole numbers of somebody else's tensor, four or eight bytes each.
struct Integers {
  const void* at;  // null: there are none
  uint32_t bytes;
  uint32_t count;
};

// What begin_step() reads in a framework's own tensors, and what it makes of it for the launches
// of the layers.
struct StepInputs {
  Integers tokens, positions, slots;  // [rows]; slots: in the pool of layers without a window
  Integers request;                   // one: the row of `table`
  Integers to_sliding;                // slot -> slot of the pool of sliding layers
  const int32_t* table;               // [requests][width], position -> slot
  int32_t* to_tokens;                 // [rows], Params::tokens
  int32_t* context;                   // Params::context
  int32_t* full;                      // [width], KvCache::slots
  int32_t* sliding;                   // the same of sliding layers, or null
  uint32_t rows, width, requests, unused;
};

// What end_step() makes of the stream: the input of the model's head.
struct StepOutput {
  const float* stream;  // [rows][H]
  const float* gain;    // [H]
  uint16_t* normed;     // [rows][H] bf16(bf16(S) / rms(bf16(S)) gain)
  uint32_t rows, hidden;
  float eps;
  uint32_t unused;
};

// A slice of a projection's columns: 128 for each of eight tensor warps.
constexpr uint32_t kSlice = 1024, kWarpColumns = 128;

}  // namespace muse
