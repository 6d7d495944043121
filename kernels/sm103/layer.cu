// One build of the layer kernel: MUSE_LEVEL (0 off, 1 counters, 2 timeline), MUSE_DETAIL (1: every
// record), MUSE_EXPERTS (0 bf16, 1 NVFP4 in the bit layout, 2 NVFP4 in the native one), MUSE_KV
// (0 keys and values in bf16, 1 in e4m3).
#include "megatrace/launch.cuh"
#include "megatrace/tracer.cuh"
#include "muse_events.cuh"

namespace muse {
namespace ev = megatrace::events::muse;
}

#include "layer.cuh"
#include "step.cuh"

namespace muse {

using Tracing =
    megatrace::Tracer<static_cast<megatrace::Level>(MUSE_LEVEL),
                      static_cast<megatrace::Detail>(MUSE_DETAIL), megatrace::Head::early, kWarps>;
#if MUSE_EXPERTS == 0
using ExpertWeights = Bf16Experts;
#elif MUSE_EXPERTS == 1
using ExpertWeights = Nvfp4Experts<BitLayout>;
#else
using ExpertWeights = Nvfp4Experts<NativeLayout>;
#endif
#if MUSE_KV == 0
using Cache = Bf16Cache;
#else
using Cache = E4m3Cache;
#endif

}  // namespace muse

#include "program.cuh"
