// The functions of ptx_math.cuh, each over arrays: one source for the GPU and the host build.
#include "megatrace/launch.cuh"
#include "arithmetic_events.cuh"

using namespace megatrace;

namespace {

constexpr uint32_t kBlocks = 2, kThreads = 128;

// One of the conversions on the words a, b, c: two words.
MEGATRACE_DEVICE uint2 convert(uint32_t which, uint32_t a, uint32_t b, uint32_t c) {
  const float x = __uint_as_float(a), y = __uint_as_float(b);
  const auto bits = [](float v) { return __float_as_uint(v); };
  switch (which) {
    case 0:
      return make_uint2(bits(ptx::bf16_low(a)), bits(ptx::bf16_high(a)));
    case 1:
      return make_uint2(bits(ptx::bf16_float(static_cast<uint16_t>(a))), ptx::float_bf16(y));
    case 2:
      return make_uint2(ptx::pack_bf16(x, y), bits(ptx::round_bf16(x)));
    case 3:
      return make_uint2(bits(ptx::f16_low(a)), bits(ptx::f16_high(a)));
    case 4:
      return make_uint2(ptx::pack_f16(x, y), ptx::mul_f16x2(a, b));
    case 5:
      return make_uint2(ptx::e4m3x2_to_f16x2(a), ptx::byte_permute(a, b, c));
    case 6:
      return make_uint2(ptx::kHasE2m1 ? ptx::e2m1x2_to_f16x2(a) : 0, ptx::kHasE2m1);
    case 7:
      return make_uint2(bits(ptx::exp2_approx(x)), bits(ptx::rsqrt(y)));
    case 8:
      return make_uint2(bits(ptx::shuffle(x, 5u)), bits(ptx::shuffle_xor(y, 3u)));
    default:
      return make_uint2(ptx::pack_e4m3(x, y), 0);
  }
}

// `count` is a multiple of 32.
__global__ void convert_all(uint32_t which, const uint32_t* in, uint2* out, uint32_t count) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    out[i] = convert(which, in[3 * i], in[3 * i + 1], in[3 * i + 2]);
}

// A warp multiplies one pair of matrices after the other: 6 words a lane, 4 sums a lane.
__global__ void multiply_all(uint32_t bf16, const uint32_t* in, float* sums, uint32_t count) {
  const uint32_t warps = gridDim.x * blockDim.x / 32;
  for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < count; i += warps) {
    const uint32_t* f = in + (i * 32 + ptx::lane_id()) * 6;
    float* mine = sums + (i * 32 + ptx::lane_id()) * 4;
    float d[4] = {mine[0], mine[1], mine[2], mine[3]};
    if (bf16 != 0)
      ptx::mma_bf16(d, f[0], f[1], f[2], f[3], f[4], f[5]);
    else
      ptx::mma_f16(d, f[0], f[1], f[2], f[3], f[4], f[5]);
    for (uint32_t j = 0; j < 4; j++) mine[j] = d[j];
  }
}

// Each warp loads four matrices, their 32 rows in the order that `rows` says.
__global__ void load_all(uint32_t transpose, const uint32_t* in, const uint32_t* rows,
                         uint32_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(ptx::dynamic_shared());
  for (uint32_t i = threadIdx.x; i < 4 * blockDim.x; i += blockDim.x)
    words[i] = in[blockIdx.x * 4 * blockDim.x + i];
  __syncthreads();
  const uint32_t first = threadIdx.x / 32 * 32;
  const char* row = ptx::dynamic_shared() + (first + rows[ptx::lane_id()]) * 16;
  uint32_t r[4];
  if (transpose != 0)
    ptx::ldmatrix_x4_trans(r, row);
  else
    ptx::ldmatrix_x4(r, row);
  for (uint32_t m = 0; m < 4; m++) out[(blockIdx.x * blockDim.x + threadIdx.x) * 4 + m] = r[m];
}

// Memory of the device while a call lasts, begun with the host's.
template <class T>
class Copy {
 public:
  Copy(const T* from, size_t count) : count_(count), p_(device_alloc<T>(count)) {
    copy_bytes(p_, from, count * sizeof(T));
  }
  ~Copy() { device_free(p_); }
  T* get() const { return p_; }
  void back(T* to) const { copy_bytes(to, p_, count_ * sizeof(T)); }

 private:
  size_t count_;
  T* p_;
};

template <class... P, class... A>
void run_once(void (*kernel)(P...), size_t shared_bytes, A... args) {
  Chain chain;
  chain.add(kernel, dim3(kBlocks), kThreads, shared_bytes, args...);
  chain.finish();
  chain.replay();
  chain.synchronize();
}

}  // namespace

extern "C" {
uint64_t megatrace_table_hash() { return events::arithmetic::kTableHash; }

// in [count][3], out [count][2]
int arithmetic_convert(uint32_t which, const uint32_t* in, uint2* out, uint32_t count) {
  return guarded([&] {
    const Copy<uint32_t> from(in, size_t{count} * 3);
    const Copy<uint2> to(out, count);
    run_once(convert_all, 0, which, static_cast<const uint32_t*>(from.get()), to.get(), count);
    to.back(out);
  });
}

// in [count][32][6], sums [count][32][4]
int arithmetic_multiply(uint32_t bf16, const uint32_t* in, float* sums, uint32_t count) {
  return guarded([&] {
    const Copy<uint32_t> from(in, size_t{count} * 32 * 6);
    const Copy<float> to(sums, size_t{count} * 32 * 4);
    run_once(multiply_all, 0, bf16, static_cast<const uint32_t*>(from.get()), to.get(), count);
    to.back(sums);
  });
}

// in [256 rows][4], rows [32], out [256 lanes][4]
int arithmetic_load(uint32_t transpose, const uint32_t* in, const uint32_t* rows, uint32_t* out) {
  return guarded([&] {
    constexpr size_t kAll = kBlocks * kThreads * 4;
    const Copy<uint32_t> from(in, kAll), order(rows, 32), to(out, kAll);
    run_once(load_all, kThreads * 16, transpose, static_cast<const uint32_t*>(from.get()),
             static_cast<const uint32_t*>(order.get()), to.get());
    to.back(out);
  });
}
}
