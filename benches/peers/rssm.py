#!/usr/bin/env python3
"""DreamerV3's recurrent state-space model in PyTorch, beside `riverrun bench rssm` on the same machine.

Sizes, operations and losses are those of riverrun's `nn::Rssm`: what does not depend on the state (the encoded actions, the
posterior's product of the tokens, the random numbers, the prior's logits over all states) is computed for all steps at once;
weights and states are in one format, categoricals in float32. `observe` is timed forward and backward, with the gradients of all
weights, `imagine` forward, without gradients. Routines:

  eager          as written
  compile        each step through torch.compile, as is what lies before and behind the steps; 64 steps unrolled compile for too long
  compile-graph  the same with all steps, both ways, recorded as one CUDA graph

Every routine is first held against a plain form in float64 on a small model: states, logits, loss and the gradient of every weight.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

ROUTINES = {"cuda": "compile,compile-graph", "cpu": "eager,compile"}
# Deterministic numbers, width of the dense layers, classes.
SIZES = {"small": (256, 64, 16), "12m": (2048, 256, 16), "50m": (4096, 512, 32), "200m": (8192, 1024, 64)}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOKENS, ACTIONS, STOCH, BLOCKS = 1024, 6, 32, 8
UNIMIX, EPSILON = 0.01, 1e-4


class BlockLinear(nn.Module):
    """A linear layer whose matrix is block-diagonal, on `[B, D]`."""

    def __init__(self, width, out, bias):
        super().__init__()
        bound = (BLOCKS / width) ** 0.5
        self.weight = nn.Parameter(torch.empty(BLOCKS, width // BLOCKS, out // BLOCKS).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(BLOCKS, 1, out // BLOCKS).uniform_(-bound, bound)) if bias else None

    def forward(self, x):
        """`[G, B, out / G]`."""
        x = x.view(len(x), BLOCKS, -1).transpose(0, 1)
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)


class Rssm(nn.Module):
    def __init__(self, deter, hidden, classes, tokens=TOKENS, actions=ACTIONS, stoch=STOCH, free_nats=1.0):
        super().__init__()
        self.deter, self.stoch, self.classes, self.free_nats = deter, stoch, classes, free_nats
        norm, logits = lambda width: nn.RMSNorm(width, EPSILON), stoch * classes
        self.deter_input, self.deter_norm = nn.Linear(deter, hidden), norm(hidden)
        self.stoch_input, self.stoch_norm = nn.Linear(logits, hidden), norm(hidden)
        self.action_input, self.action_norm = nn.Linear(actions, hidden), norm(hidden)
        self.hidden_blocks, self.hidden_inputs = BlockLinear(deter, deter, False), nn.Linear(3 * hidden, deter)
        self.hidden_norm, self.gates = norm(deter), BlockLinear(deter, 3 * deter, True)
        self.prior_1, self.prior_norm_1 = nn.Linear(deter, hidden), norm(hidden)
        self.prior_2, self.prior_norm_2 = nn.Linear(hidden, hidden), norm(hidden)
        self.prior_logits = nn.Linear(hidden, logits)
        self.posterior_deter = nn.Linear(deter, hidden, bias=False)
        self.posterior_tokens, self.posterior_norm = nn.Linear(tokens, hidden), norm(hidden)
        self.posterior_logits = nn.Linear(hidden, logits)

    def encode(self, actions):
        actions = actions / actions.abs().clamp(min=1)
        return F.silu(self.action_norm(self.action_input(actions)))

    def tokens(self, tokens):
        return self.posterior_tokens(tokens)

    def next(self, deter, stoch, action):
        d = F.silu(self.deter_norm(self.deter_input(deter)))
        s = F.silu(self.stoch_norm(self.stoch_input(stoch)))
        dense = self.hidden_inputs(torch.cat([d, s, action], -1))
        own = self.hidden_blocks(deter).transpose(0, 1).reshape(deter.shape)
        gates = self.gates(F.silu(self.hidden_norm(own + dense)))
        reset, candidate, update = (g.transpose(0, 1).reshape(deter.shape).float() for g in gates.chunk(3, -1))
        update = torch.sigmoid(update - 1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        return (update * candidate + (1 - update) * deter.float()).to(deter.dtype)

    def prior(self, deter):
        x = F.silu(self.prior_norm_1(self.prior_1(deter)))
        return self.prior_logits(F.silu(self.prior_norm_2(self.prior_2(x))))

    def probabilities(self, logits):
        logits = logits.float().view(*logits.shape[:-1], self.stoch, self.classes)
        return (1 - UNIMIX) * logits.softmax(-1) + UNIMIX / self.classes

    def sample(self, logits, noise):
        p = self.probabilities(logits)
        drawn = F.one_hot((p.detach().log() + noise).argmax(-1), self.classes)
        return (drawn + (p - p.detach())).flatten(-2).to(logits.dtype)

    def observe_step(self, deter, stoch, action, token, noise):
        deter = self.next(deter, stoch, action)
        logits = self.posterior_logits(F.silu(self.posterior_norm(self.posterior_deter(deter) + token)))
        return deter, self.sample(logits, noise), logits

    def imagine_step(self, deter, stoch, action, noise):
        deter = self.next(deter, stoch, action)
        logits = self.prior(deter)
        return deter, self.sample(logits, noise), logits

    def loss(self, deter, stoch, posterior):
        """`KL + mean of the states`, the divergence once for each side that it moves."""
        prior = self.prior(deter)

        def divergence(posterior, prior):
            p, q = self.probabilities(posterior), self.probabilities(prior)
            return (p * (p.log() - q.log())).sum((-2, -1)).clamp(min=self.free_nats).mean()

        kl = divergence(posterior.detach(), prior) + 0.1 * divergence(posterior, prior.detach())
        return kl + deter.float().mean() + stoch.float().mean()


def gumbel(shape, device):
    # Inside (0, 1), so that both logarithms are finite.
    uniform = torch.rand(shape, device=device).clamp(1e-7, 1 - 1e-7)
    return -(-uniform.log()).log()


class Runs:
    """A model's functions in the form of a routine, and its passes. Tensors are `[T, B, ..]`."""

    def __init__(self, model, routine):
        form = (lambda f: f) if routine == "eager" else lambda f: torch.compile(f, dynamic=False)
        names = ("encode", "tokens", "observe_step", "imagine_step", "loss")
        self.model, self.forms = model, {name: form(getattr(model, name)) for name in names}
        self.forms["noise"] = form(gumbel)

    def start(self, like):
        model, batch = self.model, like.shape[1]
        # With gradients as the states that follow have, so that the first step is no other function.
        options = dict(device=like.device, dtype=like.dtype, requires_grad=torch.is_grad_enabled())
        zeros = lambda width: torch.zeros(batch, width, **options)
        return zeros(model.deter), zeros(model.stoch * model.classes)

    def steps(self, step, actions, noise, *more):
        model = self.model
        if noise is None:
            noise = self.forms["noise"]((*actions.shape[:2], model.stoch, model.classes), actions.device)
        (deter, stoch), found = self.start(actions), []
        for inputs in zip(self.forms["encode"](actions), *more, noise):
            found.append(self.forms[step](deter, stoch, *inputs))
            deter, stoch, _ = found[-1]
        return [torch.stack(x) for x in zip(*found)]

    def observe(self, actions, tokens, noise=None):
        self.model.zero_grad(set_to_none=True)
        found = self.steps("observe_step", actions, noise, self.forms["tokens"](tokens))
        loss = self.forms["loss"](*found)
        loss.backward()
        return *found, loss

    def imagine(self, actions, noise=None):
        with torch.no_grad():
            return self.steps("imagine_step", actions, noise)


def plain(model, actions, noise, tokens=None):
    """Both passes from their formulas in float64: dense matrices, one step after another. The leaves come back beside the results."""
    w = {name: x.detach().double().requires_grad_() for name, x in model.named_parameters()}
    actions, noise = actions.double(), noise.double()
    linear = lambda name, x: x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)
    silu = lambda x: x / (1 + (-x).exp())
    norm = lambda name, x: silu(x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * w[f"{name}.weight"])
    dense = lambda name: torch.block_diag(*w[f"{name}.weight"])
    stoch, classes = model.stoch, model.classes

    def probabilities(logits):
        e = (logits.unflatten(-1, (stoch, classes))).exp()
        return (1 - UNIMIX) * e / e.sum(-1, keepdim=True) + UNIMIX / classes

    def prior(d):
        return linear("prior_logits", norm("prior_norm_2", linear("prior_2", norm("prior_norm_1", linear("prior_1", d)))))

    batch = actions.shape[1]
    d, s = actions.new_zeros(batch, model.deter), actions.new_zeros(batch, stoch * classes)
    deters, stochs, all_logits = [], [], []
    for t, action in enumerate(actions):
        action = norm("action_norm", linear("action_input", action / action.abs().clamp(min=1)))
        e = torch.cat([norm("deter_norm", linear("deter_input", d)), norm("stoch_norm", linear("stoch_input", s)), action], -1)
        q = norm("hidden_norm", d @ dense("hidden_blocks") + linear("hidden_inputs", e))
        q = (q @ dense("gates") + w["gates.bias"].flatten()).view(batch, BLOCKS, 3, -1)
        r, c, u = (q[:, :, k].flatten(1) for k in range(3))
        u = (u - 1).sigmoid()
        d = u * (r.sigmoid() * c).tanh() + (1 - u) * d
        if tokens is None:
            logits = prior(d)
        else:
            inner = torch.cat([d, tokens[t].double()], -1)
            both = torch.cat([w["posterior_deter.weight"], w["posterior_tokens.weight"]], 1)
            logits = linear("posterior_logits", norm("posterior_norm", inner @ both.T + w["posterior_tokens.bias"]))
        p = probabilities(logits)
        s = F.one_hot((p.log() + noise[t]).argmax(-1), classes) + p - p.detach()
        s = s.flatten(1)
        for kept, x in zip((deters, stochs, all_logits), (d, s, logits)):
            kept.append(x)
    found = [torch.stack(x) for x in (deters, stochs, all_logits)]
    if tokens is None:
        return found, w
    kl = 0.0
    for weight, p, q in ((1.0, found[2].detach(), prior(found[0])), (0.1, found[2], prior(found[0]).detach())):
        p, q = probabilities(p), probabilities(q)
        kl = kl + weight * (p * (p / q).log()).sum((2, 3)).clamp(min=model.free_nats).mean()
    return [*found, kl + found[0].mean() + found[1].mean()], w


def check(routine, device):
    """Holds a routine against the plain form; an error ends the run before anything is timed."""
    torch._dynamo.reset()
    # Without TF32, so that the limit is that of float32.
    tf32, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    # The divergence of so few classes is below a nat, where its gradient would vanish.
    model = Rssm(64, 24, 8, tokens=20, actions=3, stoch=4, free_nats=0.01).to(device)
    draw = lambda *shape: 2 * torch.randn(shape, device=device)
    actions, tokens, noise = draw(5, 3, 3), draw(5, 3, 20), gumbel((5, 3, 4, 8), device)
    runs = Runs(model, routine)
    found, expected = runs.imagine(actions, noise), plain(model, actions, noise)[0]
    pairs = [(f"imagine {k}", *both) for k, both in enumerate(zip(found, expected))]
    found, (expected, w) = runs.observe(actions, tokens, noise), plain(model, actions, noise, tokens)
    expected[-1].backward()
    pairs += [(f"observe {k}", *both) for k, both in enumerate(zip(found, expected))]
    pairs += [(name, x.grad, w[name].grad) for name, x in model.named_parameters()]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    for name, found, expected in pairs:
        error = ((found.double() - expected).norm() / expected.norm()).item()
        if not error < 1e-4:
            raise RuntimeError(f"{routine} is wrong: {name}, {error:.1e}")


def record(call):
    """The call as one CUDA graph, after calls that compile and allocate."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay():
        graph.replay()
        return kept

    return replay


def measure(call, device, recorded, budget):
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    def timed():
        start = time.perf_counter()
        kept = call()
        wait()
        del kept
        return time.perf_counter() - start

    start = time.perf_counter()
    if recorded:
        call = record(call)
    timed()
    first = time.perf_counter() - start
    for _ in range(2):
        timed()
    seconds, end = [], time.perf_counter() + budget
    while len(seconds) < 5 or time.perf_counter() < end:
        seconds.append(timed())
    seconds.sort()
    at = lambda part: seconds[round((len(seconds) - 1) * part)]
    return dict(time=dict(median=statistics.median(seconds), low=at(0.2), high=at(0.8), samples=len(seconds)), first=first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="12m", help="small, 12m, 50m, 200m, separated by commas")
    parser.add_argument("--routines", help="separated by commas [default: compile,compile-graph on a GPU, eager,compile on the CPU]")
    parser.add_argument("--dtypes", help="f32, bf16, separated by commas [default: bf16 on a GPU, f32 on the CPU]")
    parser.add_argument("--observe", default="16x64", help="sequences and steps that are observed")
    parser.add_argument("--imagine", default="1024x15", help="starts and steps that are imagined")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each timing")
    parser.add_argument("--json")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    routines = (args.routines or ROUTINES[device.type]).split(",")
    # A recording replays what its routine without one does.
    for routine in sorted({routine.removesuffix("-graph") for routine in routines}):
        check(routine, device)
    shapes = {"observe": tuple(map(int, args.observe.split("x"))), "imagine": tuple(map(int, args.imagine.split("x")))}
    rows = []
    for size in args.sizes.split(","):
        for dtype in (args.dtypes or ("bf16" if device.type == "cuda" else "f32")).split(","):
            torch._dynamo.reset()
            model = Rssm(*SIZES[size]).to(device, DTYPES[dtype])
            forms = {name: Runs(model, name) for name in {routine.removesuffix("-graph") for routine in routines}}
            for name, (batch, steps) in shapes.items():
                draw = lambda width: torch.randn(steps, batch, width, device=device, dtype=DTYPES[dtype])
                inputs = [draw(ACTIONS)] + ([draw(TOKENS)] if name == "observe" else [])
                for routine in routines:
                    runs = getattr(forms[routine.removesuffix("-graph")], name)
                    try:
                        found = measure(lambda: runs(*inputs), device, routine.endswith("-graph"), args.budget)
                    except Exception as error:  # A compiler that is missing, or memory: the others go on.
                        print(f"{size:<6} {dtype:<5} {name:<8} {routine:<14} failed: {str(error)[:120]}", flush=True)
                        continue
                    row = dict(program="torch", routine=routine, size=size, dtype=dtype, batch=batch, steps=steps)
                    row |= {"pass": name, "parameters": sum(x.numel() for x in model.parameters())}
                    rows.append(row | found)
                    ms = found["time"]["median"] * 1e3
                    print(f"{size:<6} {dtype:<5} {name:<8} {batch} x {steps:<5} {routine:<14} {ms:9.3f} ms  first {found['first']:.1f} s", flush=True)
            model.zero_grad(set_to_none=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if args.json:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        report = dict(command=" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]), name=name, version=f"torch {torch.__version__}", rows=rows)
        with open(args.json, "w") as file:
            json.dump(report, file, indent=1)


main()
