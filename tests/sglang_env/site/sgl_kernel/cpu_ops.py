"""The torch operators that Muse Spark calls on a CPU and torch or SGLang's kernels lack."""

from __future__ import annotations

import torch

_KERNELS = torch.library.Library("sgl_kernel", "FRAGMENT")
_ATEN = torch.library.Library("aten", "IMPL")


def _normalised(x, eps):
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)


def _l2norm(x, eps):
    return _normalised(x, eps).to(x.dtype)


def _rmsnorm(x, weight, eps):
    return (_normalised(x, eps) * weight.float()).to(x.dtype)


def _mm(a, b, out_dtype):
    return torch.matmul(a.float(), b.float()).to(out_dtype)


def _mm_out(a, b, out_dtype, *, out):
    out.copy_(_mm(a, b, out_dtype))
    return out


_KERNELS.define("l2norm_cpu(Tensor x, float eps) -> Tensor")
_KERNELS.define("rmsnorm_cpu(Tensor x, Tensor weight, float eps) -> Tensor")
_KERNELS.impl("l2norm_cpu", _l2norm, "CPU")
_KERNELS.impl("rmsnorm_cpu", _rmsnorm, "CPU")
_ATEN.impl("mm.dtype", _mm, "CPU")  # the head asks for float32 out of bfloat16
_ATEN.impl("mm.dtype_out", _mm_out, "CPU")
