"""The few driver calls the agent needs, through ctypes: no framework, no toolkit.

Everything runs in the context that is current on the calling thread, which is the
framework's own; where there is none, the primary context of device 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from megatrace.errors import RingError

_PORTABLE_MAPPED = 1 | 2
_STREAM_NON_BLOCKING = 1
_CAPTURE_MODE_RELAXED = 2
_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE = 50, 33, 34


class Cuda:
    """The driver, initialised. Raises RingError where there is no driver or no GPU."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RingError(
                f"no CUDA driver: {error}", hint="record the host build instead"
            ) from None
        self._call("cuInit", 0)
        context = c_void_p()
        self._call("cuCtxGetCurrent", byref(context))
        self.device = c_int()
        if not context.value:
            self._call("cuDeviceGet", byref(self.device), 0)
            self._call("cuDevicePrimaryCtxRetain", byref(context), self.device)
            self._call("cuCtxSetCurrent", context)
        else:
            self._call("cuCtxGetDevice", byref(self.device))
        self._context = context

    def _call(self, name: str, *args: Any) -> None:
        function: Callable[..., int] = getattr(self._driver, name)
        status = function(*args)
        if status:
            text = c_char_p()
            self._driver.cuGetErrorString(status, byref(text))
            words = text.value.decode() if text.value else f"error {status}"
            raise RingError(f"{name}: {words}")

    def use_context(self) -> None:
        """Make the agent's context current on this thread."""
        self._call("cuCtxSetCurrent", self._context)

    def beside_captures(self) -> None:
        """Let this thread call the driver while another captures a graph.

        Without it such a call can fail, and spoil the capture, unless it only adds to a stream.
        """
        self._call("cuThreadExchangeStreamCaptureMode", byref(c_int(_CAPTURE_MODE_RELAXED)))

    def register(self, address: int, size_bytes: int) -> int:
        """Pin host memory for the GPU; returns its device address."""
        self._call(
            "cuMemHostRegister_v2",
            c_void_p(address),
            c_size_t(size_bytes),
            c_uint(_PORTABLE_MAPPED),
        )
        return self._device_address(address)

    def allocate_host(self, size_bytes: int) -> tuple[int, int]:
        """Host memory of the driver's own, pinned: its address here and to the GPU."""
        host = c_void_p()
        self._call("cuMemHostAlloc", byref(host), c_size_t(size_bytes), c_uint(_PORTABLE_MAPPED))
        address = host.value or 0
        return address, self._device_address(address)

    def free_host(self, address: int) -> None:
        """Undo :meth:`allocate_host`."""
        self._call("cuMemFreeHost", c_void_p(address))

    def _device_address(self, host: int) -> int:
        device = c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", byref(device), c_void_p(host), c_uint(0))
        return device.value

    def unregister(self, address: int) -> None:
        """Undo :meth:`register`."""
        self._call("cuMemHostUnregister", c_void_p(address))

    def allocate(self, size_bytes: int) -> int:
        """Zeroed device memory; its address."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(size_bytes))
        self._call("cuMemsetD8_v2", address, c_int(0), c_size_t(size_bytes))
        return address.value

    def free_bytes(self) -> int:
        """Device memory that nobody holds."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree_v2", c_uint64(address))

    def stream(self) -> int:
        """A stream of the agent's own that waits for no other."""
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), c_uint(_STREAM_NON_BLOCKING))
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        """Wait for everything on ``stream``."""
        self._call("cuStreamSynchronize", c_void_p(stream))

    def synchronize_all(self) -> None:
        """Wait for everything in the context."""
        self._call("cuCtxSynchronize")

    def copy_to_device(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Copy, ordered on ``stream``; pageable sources are read before this returns."""
        self._call(
            "cuMemcpyHtoDAsync_v2",
            c_uint64(device),
            c_void_p(host),
            c_size_t(size_bytes),
            c_void_p(stream),
        )

    def copy_to_host(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Copy, ordered on ``stream``; of pageable memory the call may take as long itself."""
        self._call(
            "cuMemcpyDtoHAsync_v2",
            c_void_p(host),
            c_uint64(device),
            c_size_t(size_bytes),
            c_void_p(stream),
        )

    def write_value(self, device: int, value: int, stream: int) -> None:
        """Write 8 bytes, ordered on ``stream``: no copy, no host memory to keep."""
        self._call(
            "cuStreamWriteValue64_v2",
            c_void_p(stream),
            c_uint64(device),
            c_uint64(value),
            c_uint(0),
        )

    def load_kernel(self, ptx: str, name: str) -> tuple[c_void_p, c_void_p]:
        """Compile ``ptx`` with the driver; returns (module, function), both to be kept."""
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), c_char_p(ptx.encode()))
        self._call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        return module, function

    def launch_one(self, function: c_void_p, args: list[Any], stream: int) -> None:
        """Launch one thread."""
        pointers = (c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        one = c_uint(1)
        self._call(
            "cuLaunchKernel",
            function,
            *(one,) * 6,
            c_uint(0),
            c_void_p(stream),
            pointers,
            c_void_p(),
        )

    def numa_node(self) -> int | None:
        """The NUMA node this GPU hangs off, None where the kernel does not say."""
        parts = []
        for attribute in (_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE):
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), c_int(attribute), self.device)
            parts.append(value.value)
        path = f"/sys/bus/pci/devices/{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0/numa_node"
        try:
            with open(path) as file:
                node = int(file.read())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None
