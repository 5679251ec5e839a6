"""tools/convert/llama2c.py: order, rotation and refusals, on checkpoints of numbers that say where they were.

    python3 -m unittest discover -s tests -p 'test_llama2c.py'

Standard library only. That a converted checkpoint also speaks is tested where the model is.
SPDX-License-Identifier: Apache-2.0
"""

import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONVERTER = ROOT / "tools" / "convert" / "llama2c.py"

# dim, ffn, layers, heads, KV heads, vocabulary, context: head_dim is 4
SHAPE = (8, 6, 2, 2, 1, 5, 3)
DIM, FFN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT = SHAPE
HEAD_DIM = DIM // HEADS
KEY = KV_HEADS * HEAD_DIM
# The tensors of the file in its order, all layers of one kind together.
PER_LAYER = [
    ("input_layernorm", (DIM,)),
    ("self_attn.q_proj", (DIM, DIM)),
    ("self_attn.k_proj", (KEY, DIM)),
    ("self_attn.v_proj", (KEY, DIM)),
    ("self_attn.o_proj", (DIM, DIM)),
    ("post_attention_layernorm", (DIM,)),
    ("mlp.gate_proj", (FFN, DIM)),
    ("mlp.down_proj", (DIM, FFN)),
    ("mlp.up_proj", (FFN, DIM)),
]


def layout(tied):
    """(name, dimensions) of everything behind the header."""
    tensors = [("model.embed_tokens", (VOCAB, DIM))]
    for name, dimensions in PER_LAYER:
        tensors += [(f"model.layers.{layer}.{name}", dimensions) for layer in range(LAYERS)]
    tensors += [("model.norm", (DIM,)), (None, (CONTEXT, HEAD_DIM))]
    return tensors if tied else [*tensors, ("lm_head", (VOCAB, DIM))]


def checkpoint(tied):
    """The bytes of a file whose values count up from zero."""
    count = sum(math.prod(dimensions) for _, dimensions in layout(tied))
    header = (*SHAPE[:5], VOCAB if tied else -VOCAB, CONTEXT)
    return struct.pack("<7i", *header) + struct.pack(f"<{count}f", *range(count))


class Llama2cTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def convert(self, data):
        source = self.directory / "model.bin"
        source.write_bytes(data)
        command = [sys.executable, CONVERTER, source, self.directory / "out"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def read(self):
        """The configuration, and {name: (shape, values)}."""
        config = json.loads((self.directory / "out/config.json").read_text())
        data = (self.directory / "out/model.safetensors").read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        self.assertEqual(length % 8, 0)
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = array.array("f", data[begin:end])
            self.assertEqual(entry["dtype"], "F32")
            self.assertEqual(math.prod(entry["shape"]), len(values))
            tensors[name] = (tuple(entry["shape"]), list(values))
        return config, tensors

    def check_tensors(self, tied):
        result = self.convert(checkpoint(tied))
        self.assertEqual(result.returncode, 0, result.stderr)
        config, tensors = self.read()
        self.assertEqual(config["tie_word_embeddings"], tied)
        at = 0
        for name, dimensions in layout(tied):
            values = list(map(float, range(at, at + math.prod(dimensions))))
            at += len(values)
            if name is None:
                continue
            if name.endswith(("q_proj", "k_proj")):
                rows = [values[i : i + DIM] for i in range(0, len(values), DIM)]
                heads = [rows[i : i + HEAD_DIM] for i in range(0, len(rows), HEAD_DIM)]
                values = [x for head in heads for row in head[0::2] + head[1::2] for x in row]
            self.assertEqual(tensors.pop(name + ".weight"), (dimensions, values), name)
        self.assertEqual(tensors, {})

    def test_tied(self):
        self.check_tensors(tied=True)

    def test_own_output_projection(self):
        self.check_tensors(tied=False)

    def test_configuration(self):
        self.convert(checkpoint(True))
        config, _ = self.read()
        expected = {
            "hidden_size": 8,
            "intermediate_size": 6,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "vocab_size": 5,
            "max_position_embeddings": 3,
            "torch_dtype": "float32",
        }
        self.assertEqual(config, config | expected)

    def test_other_files_are_refused_in_one_sentence(self):
        good = checkpoint(True)
        for data, reason in [
            (b"", "too short for a header"),
            (good[:-4], "shorter than its header says"),
            (good + bytes(4), "longer than its header says"),
            (good + b"x", "no sequence of 4-byte values"),
            (b"ak42" + good[4:], "no header of a llama2.c checkpoint"),
            (struct.pack("<7i", 8, 6, 2, 3, 1, 5, 3), "no header of a llama2.c checkpoint"),
        ]:
            result = self.convert(data)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(reason, result.stderr)
            self.assertFalse((self.directory / "out").exists())


if __name__ == "__main__":
    unittest.main()
