#!/usr/bin/env python3
"""manyfiles.py DIR  600 files of one expert each: 3 layers of 200; the first byte of gate is the layer, the second the expert"""
import json, os, struct, sys
d = sys.argv[1]
for l in range(3):
    os.makedirs(f'{d}/layer{l}', exist_ok=True)
    for e in range(200):
        h = json.dumps({f'model.layers.{l}.mlp.experts.{e}.{p}_proj.weight': dict(dtype='U8', shape=[4], data_offsets=[4 * j, 4 * j + 4]) for j, p in enumerate(('gate', 'up', 'down'))}).encode()
        h += b' ' * (-len(h) % 8)
        with open(f'{d}/layer{l}/expert{e:03d}.safetensors', 'wb') as f:
            f.write(struct.pack('<Q', len(h)) + h + b''.join(bytes([l, e, j, 0]) for j in range(3)))
json.dump(dict(model_type='qwen3_moe', num_hidden_layers=3, num_experts=200, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True), open(d + '/config.json', 'w'))
