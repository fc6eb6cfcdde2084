"""Writes rssm.json: DreamerV3's recurrent state-space model by the published formulas, in float64 with numpy.

Weights and inputs are random; states, logits, samples and losses follow from them. Gradients are central differences of the
loss in which every sample is replaced by `sample + p - p_of_the_first_run`, whose derivative is the straight-through one, and in
which the stopped side of each divergence keeps its first value.

    python3 make_rssm.py > rssm.json
"""

import json
import numpy as np

rng = np.random.default_rng(7)
B, T, TOKENS, ACTIONS = 2, 4, 3, 2
DETER, HIDDEN, STOCH, CLASSES, BLOCKS = 8, 6, 3, 4, 2
UNIMIX, EPSILON, FREE = 0.01, 1e-4, 0.2
KEY = [11, 22, 33, 44]
LOGITS, PART = STOCH * CLASSES, DETER // BLOCKS
SHAPES = {
    "deter_input.weight": (DETER, HIDDEN), "deter_input.bias": (HIDDEN,), "deter_norm.gamma": (HIDDEN,),
    "stoch_input.weight": (LOGITS, HIDDEN), "stoch_input.bias": (HIDDEN,), "stoch_norm.gamma": (HIDDEN,),
    "action_input.weight": (ACTIONS, HIDDEN), "action_input.bias": (HIDDEN,), "action_norm.gamma": (HIDDEN,),
    "hidden_blocks.weight": (BLOCKS, PART, PART),
    "hidden_inputs.weight": (3 * HIDDEN, DETER), "hidden_inputs.bias": (DETER,), "hidden_norm.gamma": (DETER,),
    "gates.weight": (BLOCKS, PART, 3 * PART), "gates.bias": (BLOCKS, 1, 3 * PART),
    "prior_layers.0.weight": (DETER, HIDDEN), "prior_layers.0.bias": (HIDDEN,),
    "prior_layers.1.weight": (HIDDEN, HIDDEN), "prior_layers.1.bias": (HIDDEN,),
    "prior_norms.0.gamma": (HIDDEN,), "prior_norms.1.gamma": (HIDDEN,),
    "prior_logits.weight": (HIDDEN, LOGITS), "prior_logits.bias": (LOGITS,),
    "posterior_deter.weight": (DETER, HIDDEN),
    "posterior_tokens.weight": (TOKENS, HIDDEN), "posterior_tokens.bias": (HIDDEN,), "posterior_norm.gamma": (HIDDEN,),
    "posterior_logits.weight": (HIDDEN, LOGITS), "posterior_logits.bias": (LOGITS,),
}
single = lambda x: np.asarray(x, np.float32).astype(np.float64)
weights = {name: single(rng.normal(1.0 if "gamma" in name else 0.0, 0.2 if "gamma" in name else 0.8, shape)) for name, shape in SHAPES.items()}
tokens, actions = single(rng.normal(size=(B, T, TOKENS))), single(rng.normal(size=(B, T, ACTIONS)) * 1.5)
deter0 = single(rng.uniform(-1, 1, (B, DETER)))
stoch0 = single(np.eye(CLASSES)[rng.integers(0, CLASSES, (B, STOCH))].reshape(B, LOGITS))
resets = np.zeros((B, T), bool)
resets[1, 2] = True


def uniform(stream, n):
    mask = np.uint64(0xFFFFFFFF)

    def mix(x):
        x = x ^ (x >> np.uint64(16)); x = x * np.uint64(0x7FEB352D) & mask
        x = x ^ (x >> np.uint64(15)); x = x * np.uint64(0x846CA68B) & mask
        return x ^ (x >> np.uint64(16))
    s = np.uint64(stream)
    for word in reversed(KEY):
        s = mix(s) ^ np.uint64(word)
    s = mix(s)
    t = mix(s ^ np.uint64(0x9E3779B9))
    bits = mix(mix(np.arange(n, dtype=np.uint64) + s & mask) ^ t)
    return ((bits >> np.uint64(9)).astype(np.float64) + 0.5) / 2.0**23


silu = lambda x: x / (1 + np.exp(-x))
sigmoid = lambda x: 1 / (1 + np.exp(-x))


def run(w, first=None, steps=T, observe=True, start=None):
    """States and logits; `first` is a run whose samples are taken, and whose probabilities are subtracted."""
    linear = lambda name, x: x @ w[name + ".weight"] + w.get(name + ".bias", 0.0)
    norm = lambda name, x: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * w[name + ".gamma"]
    act = lambda name, x: silu(norm(name, x))
    blocks = lambda x: x.reshape(B, BLOCKS, PART)
    mixed = lambda logits: (1 - UNIMIX) * np.exp(logits - logits.max(-1, keepdims=True)) / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True) + UNIMIX / CLASSES

    def prior_of(deter):
        x = deter
        for layer in range(2):
            x = act(f"prior_norms.{layer}", linear(f"prior_layers.{layer}", x))
        return linear("prior_logits", x)
    gumbel = -np.log(-np.log(uniform(0 if observe else 1, steps * B * LOGITS).reshape(steps, B, STOCH, CLASSES)))
    deter, stoch = start or (deter0, stoch0)
    out = dict(deter=[], stoch=[], posterior=[], prior=[], p=[], hot=[])
    for t in range(steps):
        action = actions[:, t]
        if observe:
            keep = 1.0 - resets[:, t, None]
            deter, stoch, action = deter * keep, stoch * keep, action * keep
        action = action / np.maximum(1, np.abs(action))
        e = np.concatenate([act("deter_norm", linear("deter_input", deter)), act("stoch_norm", linear("stoch_input", stoch)), act("action_norm", linear("action_input", action))], -1)
        # Each block sees its part of the state and all of e.
        own = np.einsum("bgi,gio->bgo", blocks(deter), w["hidden_blocks.weight"]).reshape(B, DETER)
        q = act("hidden_norm", own + linear("hidden_inputs", e))
        gates = np.einsum("bgi,gio->bgo", blocks(q), w["gates.weight"]) + w["gates.bias"][:, 0]
        reset, cand, update = (x.reshape(B, DETER) for x in np.split(gates, 3, -1))
        update = sigmoid(update - 1)
        deter = update * np.tanh(sigmoid(reset) * cand) + (1 - update) * deter
        prior = prior_of(deter)
        posterior = act("posterior_norm", deter @ w["posterior_deter.weight"] + linear("posterior_tokens", tokens[:, t])) if observe else None
        logits = linear("posterior_logits", posterior) if observe else prior
        p = mixed(logits.reshape(B, STOCH, CLASSES))
        if first is None:
            hot = np.eye(CLASSES)[(np.log(p) + gumbel[t]).argmax(-1)]
            sample = hot
        else:
            hot = first["hot"][t]
            sample = hot + p - first["p"][t]
        stoch = sample.reshape(B, LOGITS)
        for name, x in dict(deter=deter, stoch=stoch, posterior=logits, prior=prior, p=p, hot=hot).items():
            out[name].append(x)
    split = lambda name: np.stack(out[name], 1).reshape(B, steps, STOCH, CLASSES)
    out["post_p"], out["prior_p"] = mixed(split("posterior")), mixed(split("prior"))
    return out


def losses(run, first):
    kl = lambda p, q: np.maximum(FREE, (p * (np.log(p) - np.log(q))).sum((-1, -2))).mean()
    dynamics, representation = kl(first["post_p"], run["prior_p"]), kl(run["post_p"], first["prior_p"])
    # The states themselves are in the loss too, so that gradients pass through all of them.
    states = (np.stack(run["deter"], 1) ** 2).mean() + (np.stack(run["stoch"], 1) * TARGET).mean()
    return dynamics, representation, dynamics + 0.1 * representation + states


TARGET = single(rng.normal(size=(B, T, LOGITS)))
base = run(weights)
dynamics, representation, total = losses(base, base)
gradients = {}
for name, value in weights.items():
    d = np.zeros_like(value)
    for at in np.ndindex(value.shape):
        def moved(by):
            w = dict(weights)
            w[name] = value.copy()
            w[name][at] += by
            return losses(run(w, base), base)[2]
        d[at] = (moved(1e-5) - moved(-1e-5)) / 2e-5
    gradients[name] = d
imagined = run(weights, observe=False, start=(base["deter"][-1], base["stoch"][-1]))
flat = lambda x: [round(float(v), 9) for v in np.asarray(x).ravel()]
stacked = lambda run, name: flat(np.stack(run[name], 1))
json.dump(
    dict(
        sizes=dict(batch=B, steps=T, tokens=TOKENS, actions=ACTIONS, deter=DETER, hidden=HIDDEN, stoch=STOCH, classes=CLASSES, blocks=BLOCKS),
        free_nats=FREE, key=KEY, weights={n: dict(shape=list(v.shape), values=flat(v)) for n, v in weights.items()},
        tokens=flat(tokens), actions=flat(actions), deter0=flat(deter0), stoch0=flat(stoch0), resets=[bool(x) for x in resets.ravel()], target=flat(TARGET),
        deter=stacked(base, "deter"), stoch=stacked(base, "stoch"), posterior=stacked(base, "posterior"), prior=stacked(base, "prior"),
        dynamics=float(dynamics), representation=float(representation), total=float(total),
        gradients={n: flat(v) for n, v in gradients.items()},
        imagined=dict(deter=stacked(imagined, "deter"), stoch=stacked(imagined, "stoch"), prior=stacked(imagined, "prior")),
    ),
    __import__("sys").stdout,
)
