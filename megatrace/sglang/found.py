"""Every megakernel that SGLang builds, whoever registered it: what it is, as a fact.

Its steps are the host spans of any forward. Its own records need nothing from here: a package
that gives its kernels the tracer calls ``KernelAgent.start`` when it builds them, and steps,
stream and recorder are those of the server.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from megatrace.agent.host import HostAgent
from megatrace.sglang.guard import Guard

FIND_SPEC = "sglang.kernels.plugin_kernels.nvidia.spec.find_spec"


class FoundKernels:
    """Writes a ``megakernel`` fact for each build.

    ::

        name, model     what it is called, and the class of the model it runs in
        widths          rows of the steps it covers
        summary         its own words
        numerics        bitwise | tolerance
        build_s         how long that took
    """

    def __init__(self, agent: HostAgent, guard: Guard) -> None:
        self._agent = agent
        self._guard = guard

    def after_find_spec(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """AFTER ``find_spec(architectures=, isa=)``: the same spec with its build watched."""
        spec, why = result
        if spec is None or FIND_SPEC in self._guard.broken:
            return None
        try:
            fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
            fields["build"] = functools.partial(self._build, spec)
            return type(spec)(**fields), why
        except Exception as error:
            self._guard.fail(FIND_SPEC, error)
            return None

    def _build(self, spec: Any, model: Any, hf_config: Any, context: Any) -> Any:
        begin = time.monotonic()
        built = spec.build(model, hf_config, context)
        try:
            self._tell(spec, model, built, time.monotonic() - begin)
        except Exception as error:
            self._guard.fail(FIND_SPEC, error)
        return built

    def _tell(self, spec: Any, model: Any, built: Any, build_s: float) -> None:
        self._agent.fact(
            "megakernel",
            {
                "name": spec.name,
                "model": type(model).__name__,
                "widths": [int(width) for width in built.widths],
                "summary": built.summary(),
                "numerics": spec.numerics.kind.value,
                "build_s": round(build_s, 3),
            },
        )
