"""Writes random models from a seed: weights in bfloat16, config, tokenizer. Needs NumPy alone."""

import json
import struct
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np

from gpu_kit.model_shapes import Shape, tokenizer, tokenizer_config

SEED: Final = 7
_BLOCK: Final = 2**24  # random weights, which repeat; no two layers are equal
_SCALE: Final = 0.02
_ONE: Final = 0x3F80  # 1.0 in bfloat16


def write_model(shape: Shape, folder: Path, block: "np.ndarray[tuple[int], np.dtype[np.uint16]]") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.config()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in shape.tensors():
        begin, end = end, end + 2 * int(np.prod(dimensions))
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    at = 0
    with (folder / "model.safetensors").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, dimensions in shape.tensors():
            left = int(np.prod(dimensions))
            if len(dimensions) == 1:  # a norm, which scales by one
                out.write(np.full(left, _ONE, np.uint16).tobytes())
                continue
            while left > 0:
                part = block[at : at + left]
                out.write(part.data)
                left -= len(part)
                at = (at + len(part)) % len(block)
    return folder


def random_block(size: int = _BLOCK, seed: int = SEED) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
    """Normal deviates in bfloat16, whose bits are the upper half of those of a float32."""
    deviates = np.random.default_rng(seed).standard_normal(size, np.float32) * np.float32(_SCALE)
    return (deviates.view(np.uint32) >> 16).astype(np.uint16)


class ModelMaker:
    """Writes models in a thread, the smallest first, while other steps run."""

    def __init__(self, folder: Path, shapes: tuple[Shape, ...]) -> None:
        self._folder = folder
        self._shapes = shapes
        self._done = {shape.name: threading.Event() for shape in shapes}
        self.seconds: dict[str, float] = {}
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            block = random_block()
            for shape in self._shapes:
                began = time.monotonic()
                write_model(shape, self._folder / shape.name, block)
                self.seconds[shape.name] = round(time.monotonic() - began, 1)
                self._done[shape.name].set()
        except Exception as error:  # noqa: BLE001 - raised where the model is used
            self._error = error
            for done in self._done.values():
                done.set()

    def folder_of(self, name: str, limit_s: float) -> Path:
        """The model's folder once it is written. Raises `RuntimeError` if it was not written, or not in time."""
        if not self._done[name].wait(limit_s):
            raise RuntimeError(f"model {name} is not written within {limit_s:g} s")
        if self._error is not None:
            raise RuntimeError(f"models were not written: {self._error!r}") from self._error
        return self._folder / name
