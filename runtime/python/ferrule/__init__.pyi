import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Answer", "Error", "Port", "Session", "program", "__version__"]

__version__: str

_Path = str | os.PathLike[str]
_Shapes = Mapping[str, Sequence[int]]

class _DLPack(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Error(RuntimeError):
    code: str
    place: str
    message: str
    hint: str
    exit_code: int
    def __init__(self, text: str, code: str = "", place: str = "", message: str = "", hint: str = "", exit_code: int = 0) -> None: ...

@dataclass(frozen=True)
class Port:
    name: str
    type: str
    shape: tuple[int | str | None, ...] | None
    optional: bool = False
    @property
    def dtype(self) -> np.dtype[Any]: ...

class Answer(dict[str, Any]):
    text: str
    def __init__(self, data: Mapping[str, Any], text: str) -> None: ...

class Session:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    def __init__(
        self,
        model: _Path | bytes | bytearray | memoryview,
        *,
        backend: str = "auto",
        target: str | None = None,
        rules: _Path | None = None,
        rule_folders: Sequence[_Path] = (),
        enable: Sequence[str] = (),
        disable: Sequence[str] = (),
        override_files: Sequence[_Path] = (),
        allow_unproven: Sequence[str] = (),
        tuning: _Path | None = None,
        cache: _Path | None = None,
        threads: int = 0,
        concurrent_runs: int = 0,
        require_device: bool = False,
        strict: bool = False,
        fast_math: bool = False,
        no_fusion: bool = False,
        overridable: bool = False,
        log: Callable[[str, str], None] | None = None,
        log_level: str = "warning",
    ) -> None: ...
    def __del__(self) -> None: ...
    def run(self, inputs: Mapping[str, ArrayLike | _DLPack], outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]: ...
    def __call__(self, inputs: Mapping[str, ArrayLike | _DLPack], outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]: ...
    def run_into(self, inputs: Mapping[str, ArrayLike | _DLPack], outputs: Mapping[str, NDArray[Any]]) -> None: ...
    def cancel(self) -> None: ...
    def plan(self, shapes: _Shapes | None = None) -> Answer: ...
    def journal(self, shapes: _Shapes | None = None) -> Answer: ...
    def device(self, shapes: _Shapes | None = None) -> dict[str, Any]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    def explain(self, shapes: _Shapes | None = None) -> Answer: ...
    def why(self, node: str, other: str | None = None, *, rule: str | None = None, shapes: _Shapes | None = None) -> Answer: ...
    def missed(self, shapes: _Shapes | None = None) -> Answer: ...
    def verify(self, shapes: _Shapes | None = None) -> Answer: ...

def program() -> str: ...
