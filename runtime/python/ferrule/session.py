from __future__ import annotations

import ctypes
import html
import json
import os
import pathlib
import subprocess
import tempfile
from ctypes import byref, c_char_p, c_void_p
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from . import _library as lib
from ._library import C, Error
from ._program import program


@dataclass(frozen=True)
class Port:
    """An input or output as the model declares it."""

    name: str
    type: str  #: ONNX's name of the element type: "float", "int64", ...
    shape: tuple[int | str | None, ...] | None  #: a str is the name of an open size; None: the rank is not declared
    optional: bool = False  #: has a value of its own where it is left out

    @property
    def dtype(self) -> np.dtype:
        return lib.numpy_type(next(k for k, v in lib.NAMES.items() if v == self.type))


class Answer(dict):
    """What a command of `ferrule` printed as JSON. `text` is what it prints for people."""

    def __init__(self, data: Mapping[str, Any], text: str):
        super().__init__(data)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        printer.text(self.text)

    def _repr_html_(self) -> str:
        layers = self.get("layers")
        if not isinstance(layers, list):
            return f"<pre>{html.escape(self.text)}</pre>"
        rows = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(x))}</td>" for x in (
            k, layer.get("contract", ""), layer.get("rule") or "", layer.get("name", ""))) + "</tr>" for k, layer in enumerate(layers))
        return ("<table><thead><tr><th>#</th><th>contract</th><th>rule</th><th style='text-align:left'>layer</th></tr></thead>"
                f"<tbody>{rows}</tbody></table>")


class Session:
    """A model that is ready to run. Any number of threads may use it at once, and other threads go on meanwhile.

    model: a path, or the bytes of a model file.
    threads: of one run; 0: one a physical core.  concurrent_runs: how many runs of one input shape may take memory of their own at once
    (more wait); 0: no bound.  overridable: initializers that are inputs, too, may be given in a run.  The other options are those of `ferrule run --help`.
    """

    def __init__(self, model: str | os.PathLike | bytes, *, backend: str = "auto", target: str | None = None,
                 rules: str | os.PathLike | None = None, rule_folders: Sequence[str | os.PathLike] = (), enable: Sequence[str] = (),
                 disable: Sequence[str] = (), override_files: Sequence[str | os.PathLike] = (), allow_unproven: Sequence[str] = (),
                 tuning: str | os.PathLike | None = None, cache: str | os.PathLike | None = None, threads: int = 0,
                 concurrent_runs: int = 0, require_device: bool = False, strict: bool = False, fast_math: bool = False,
                 no_fusion: bool = False, overridable: bool = False, log: Callable[[str, str], None] | None = None, log_level: str = "warning"):
        self._made_with = {k: v for k, v in locals().items() if k not in ("self", "model", "log", "__class__")}
        self._model: Any = model if isinstance(model, (bytes, bytearray, memoryview)) else os.fspath(model)
        levels = ("error", "warning", "info", "verbose")
        o = lib.Options(size=ctypes.sizeof(lib.Options), threads=threads, concurrent_runs=concurrent_runs, require_device=require_device,
                        strict=strict, fast_math=fast_math, no_fusion=no_fusion, overridable=overridable, log_level=levels.index(log_level))
        for name, value in (("backend", backend), ("target", target), ("rules", rules), ("tuning", tuning), ("cache", cache)):
            if value is not None:
                setattr(o, name, os.fsencode(value))
        lists = {"rule_folders": rule_folders, "enable": enable, "disable": disable, "override_files": override_files, "allow_unproven": allow_unproven}
        keep = {name: lib.strings(value) for name, value in lists.items()}
        for name, texts in keep.items():
            if texts is not None:
                setattr(o, name, ctypes.cast(texts, ctypes.POINTER(c_char_p)))
        self._log = lib.LogCallback(lambda _, level, text: log(levels[level], text.decode("utf-8", "replace"))) if log else None
        if self._log:
            o.log = self._log
        self._handle = c_void_p()
        if isinstance(self._model, str):
            lib.check(C.ferrule_session_create(os.fsencode(self._model), byref(o), byref(self._handle)))
        else:
            data = bytes(self._model)
            lib.check(C.ferrule_session_create_from_bytes(data, len(data), byref(o), byref(self._handle)))
        self.inputs = self._ports(C.ferrule_session_input_count, C.ferrule_session_input)
        self.outputs = self._ports(C.ferrule_session_output_count, C.ferrule_session_output)

    def __del__(self):
        if getattr(self, "_handle", None):
            C.ferrule_session_free(self._handle)

    def _ports(self, count, get) -> tuple[Port, ...]:
        out = []
        for k in range(count(self._handle)):
            p = lib.Port(size=ctypes.sizeof(lib.Port))
            lib.check(get(self._handle, k, byref(p)))
            shape = None if p.rank < 0 else tuple(
                p.dims[d] if p.dims[d] >= 0 else p.symbols[d].decode() or None for d in range(p.rank))
            out.append(Port(p.name.decode(), lib.NAMES.get(p.type, "undefined"), shape, bool(p.optional)))
        return tuple(out)

    def __reduce__(self):
        return _again, (self._model, self._made_with)

    def __repr__(self) -> str:
        name = self._model if isinstance(self._model, str) else f"{len(self._model)} bytes"
        return f"ferrule.Session({name!r})"

    @staticmethod
    def _array(name: str, value: Any) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value)

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Inputs by name: arrays, or what gives one by DLPack. Returns outputs by name, all or those that are named."""
        arguments = lib.Arguments({name: self._array(name, value) for name, value in inputs.items()})
        wanted = [name.encode() for name in outputs or ()]
        results = c_void_p()
        lib.check(C.ferrule_run(self._handle, arguments.tensors, len(arguments), (c_char_p * len(wanted))(*wanted), len(wanted), byref(results)))
        return lib.take_results(results)

    __call__ = run

    def run_into(self, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> None:
        """Writes outputs into arrays of their types and shapes, C-contiguous."""
        for name, array in outputs.items():
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"the array for {name} is not C-contiguous and writeable")
        given = lib.Arguments({name: self._array(name, value) for name, value in inputs.items()})
        into = lib.Arguments(dict(outputs))
        lib.check(C.ferrule_run_into(self._handle, given.tensors, len(given), into.tensors, len(into)))

    def cancel(self) -> None:
        """Runs that are under way, and all later ones, end with the error "cancelled". By any thread."""
        C.ferrule_session_cancel(self._handle)

    def _view(self, view: int, shapes: Mapping[str, Sequence[int]] | None) -> dict:
        given = (lib.Tensor * len(shapes or {}))()
        keep = []
        for t, (name, dims) in zip(given, (shapes or {}).items()):
            t.name, t.rank, t.type = name.encode(), len(dims), 1
            keep.append((ctypes.c_int64 * len(dims))(*dims))
            t.dims = keep[-1]
        text = c_void_p()
        lib.check(C.ferrule_session_view(self._handle, view, given, len(given), byref(text)))
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            C.ferrule_text_free(text)

    def plan(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """The layers in the order in which they run, each with its rule. `shapes`: of inputs of open size."""
        data = self._view(0, shapes)
        lines = [f"{k:4}  {layer['contract']:<16} {layer['rule'] or '-':<22} {layer['name']}" for k, layer in enumerate(data["layers"])]
        return Answer(data, "\n".join([f"{len(lines)} layers for {data['target']}", *lines]))

    def journal(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """What was done to the model, step by step."""
        data = self._view(1, shapes)
        return Answer(data, "\n".join(step["text"] for step in data["steps"]))

    def device(self, shapes: Mapping[str, Sequence[int]] | None = None) -> dict:
        """What really runs the model: backend, device, target."""
        return self._view(2, shapes)

    @property
    def metadata(self) -> dict:
        """producer, graph, domain, description, version, ir_version, metadata: as the model file says."""
        return self._view(3, None)

    # --- what the command line program answers --------------------------------------------------------

    def _command(self, name: str, *arguments: str, shapes: Mapping[str, Sequence[int]] | None = None, fine: Sequence[int] = (0,)) -> Answer:
        made = self._made_with
        options = [f"--{key.replace('_', '-')}" for key in ("strict", "fast_math", "overridable") if made[key]]
        for key, flag in (("backend", "--backend"), ("target", "--target"), ("tuning", "--tuning"), ("cache", "--cache")):
            if made[key] is not None and (key, made[key]) != ("backend", "auto"):
                options += [flag, os.fspath(made[key])]
        for key, flag in (("rule_folders", "--rules"), ("enable", "--enable"), ("disable", "--disable"), ("override_files", "--override"),
                          ("allow_unproven", "--allow-unproven")):
            for value in made[key]:
                options += [flag, os.fspath(value)]
        if made["rules"] is not None:
            options += ["--rules", os.fspath(made["rules"])]
        if made["no_fusion"]:
            options += ["--disable", "*"]
        for key, dims in (shapes or {}).items():
            options += ["--shapes", f"{key}:" + "x".join(map(str, dims))]
        with tempfile.TemporaryDirectory() as folder:
            model = self._model
            if not isinstance(model, str):
                model = os.path.join(folder, "model.onnx")
                pathlib.Path(model).write_bytes(self._model)

            def run(*more: str) -> str:
                done = subprocess.run([program(), name, model, *arguments, *options, *more], capture_output=True, text=True, encoding="utf-8",
                                      errors="replace", env={**os.environ, "NO_COLOR": "1"}, check=False)
                if done.returncode not in fine:
                    raise Error(done.stderr.strip() or f"ferrule {name} ended with {done.returncode}", exit_code=done.returncode)
                return done.stdout.replace(os.path.join(folder, ""), "")  # a model of bytes has no path to speak of
            return Answer(json.loads(run("--json")), run())

    def explain(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """What was fused, by which rule, and what nearly was: a dict; str() of it is the text, notebooks show a table."""
        return self._command("explain", shapes=shapes)

    def why(self, node: str, other: str | None = None, *, rule: str | None = None, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """Why a node, or two, did not fuse, and what would change it."""
        asked = ["--pair", node, other] if other else ["--node", node]
        return self._command("why", *asked, *(["--rule", rule] if rule else []), shapes=shapes)

    def missed(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """What still goes through memory between layers."""
        return self._command("missed", shapes=shapes)

    def verify(self, shapes: Mapping[str, Sequence[int]] | None = None) -> Answer:
        """Fused against unfused on random inputs."""
        return self._command("verify", shapes=shapes, fine=(0, 1))


def _again(model, options) -> Session:
    return Session(model, **options)
