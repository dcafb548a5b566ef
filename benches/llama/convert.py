#!/usr/bin/env python3
"""Writes a Qwen3-MoE checkpoint folder as a GGUF file without a tokenizer, for `tier-bench llama`.

  convert.py FOLDER OUT.gguf stored|f16

`stored` keeps the types of the matrices, `f16` makes them F16 (int4 is decoded first).
"""

import os
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "crates/engine-example/tests/tools"
sys.path.insert(0, str(TOOLS))
import make_gguf  # noqa: E402


def without_tokenizer(writer: make_gguf.gguf.GGUFWriter, config: dict) -> None:
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])


def main() -> int:
    folder, out, kind = sys.argv[1:]
    wanted = {"stored": None, "f16": make_gguf.T.F16}[kind]
    # The name that the tool is given has no ending; the file comes into place whole.
    part = str(Path(out).absolute()) + ".part"
    make_gguf.model(
        str(Path(folder).absolute()), part, lambda _name: wanted, describe=without_tokenizer
    )
    os.rename(f"{part}.gguf", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
