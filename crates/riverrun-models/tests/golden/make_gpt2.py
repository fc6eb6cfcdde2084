#!/usr/bin/env python3
"""Writes gpt2.json and gpt2/*.safetensors: a small GPT-2 of random weights by transformers in float64, its logits, its loss and
the gradients of all weights.

    python3 make_gpt2.py        (made with PyTorch 2.15, transformers 5.23)
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(11)
B, T = 2, 9
config = GPT2Config(vocab_size=19, n_positions=12, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0,
                    attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
model = GPT2LMHeadModel(config).double()
with torch.no_grad():
    for parameter in model.parameters():
        # Biases and norms at random too, and logits that are far from even.
        parameter.add_(0.2 * torch.randn_like(parameter))
        parameter.copy_(parameter.float())
tokens = torch.randint(0, config.vocab_size, (B, T + 1))
logits = model(tokens[:, :-1]).logits
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
loss.backward()
folder = pathlib.Path(__file__).with_name("gpt2")
folder.mkdir(exist_ok=True)
weights = {name: p for name, p in model.named_parameters()}
save_file({name: p.detach().float().contiguous() for name, p in weights.items()}, folder / "weights.safetensors")
save_file({name: p.grad.float().contiguous() for name, p in weights.items()}, folder / "gradients.safetensors")
numbers = dict(batch=B, steps=T, vocab=config.vocab_size, positions=config.n_positions, width=config.n_embd,
               layers=config.n_layer, heads=config.n_head, tokens=tokens.flatten().tolist(), loss=loss.item(),
               parameters=model.num_parameters(), logits=[round(x, 7) for x in logits.flatten().tolist()])
pathlib.Path(__file__).with_name("gpt2.json").write_text(json.dumps(numbers) + "\n")
