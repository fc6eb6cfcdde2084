import pytest
import reference
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

import riverrun.torch as rt

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(decay, erase=True, batch=2, steps=11, heads=2, value_heads=2, key=4, value=3, sequences=None):
    """`q, k, v, g, beta, initial`, with unit keys, decays below 1 and `beta` in `(0, 1)`; float64."""
    made = {
        "q": torch.randn(batch, steps, heads, key, dtype=torch.float64),
        "k": torch.nn.functional.normalize(torch.randn(batch, steps, heads, key, dtype=torch.float64), dim=-1),
        "v": torch.randn(batch, steps, value_heads, value, dtype=torch.float64),
        "g": -torch.rand(batch, steps, value_heads, *([key] if decay == "row" else []), dtype=torch.float64),
        "beta": torch.rand(batch, steps, value_heads, dtype=torch.float64) if erase else None,
        "initial": torch.randn(sequences or batch, value_heads, key, value, dtype=torch.float64),
    }
    return {name: x for name, x in made.items() if x is not None}


def forms():
    """Name, decay, whether there is an erase, and the operation on `q, k, v, g, beta, initial`."""

    def chunk_gdn(q, k, v, g, beta, initial, **options):
        return rt.chunk_gated_delta_rule(q, k, v, g, beta, None, initial, True, **options)

    def recurrent_gdn(q, k, v, g, beta, initial, **options):
        return rt.fused_recurrent_gated_delta_rule(
            q, k, v, g, beta=beta, initial_state=initial, output_final_state=True, **options
        )

    def chunk_kda(q, k, v, g, beta, initial, **options):
        return rt.chunk_kda(q, k, v, g, beta, None, initial, True, **options)

    def recurrent_kda(q, k, v, g, beta, initial, **options):
        return rt.fused_recurrent_kda(q, k, v, g, beta, initial_state=initial, output_final_state=True, **options)

    def chunk_gla(q, k, v, g, initial, **options):
        return rt.chunk_gla(q, k, v, g, None, initial, True, **options)

    def recurrent_gla(q, k, v, g, initial, **options):
        return rt.fused_recurrent_gla(q, k, v, g, None, None, initial, True, **options)

    yield "chunk_gated_delta_rule", "head", True, chunk_gdn
    yield "fused_recurrent_gated_delta_rule", "head", True, recurrent_gdn
    yield "chunk_kda", "row", True, chunk_kda
    yield "fused_recurrent_kda", "row", True, recurrent_kda
    yield "chunk_gla", "row", False, chunk_gla
    yield "fused_recurrent_gla", "row", False, recurrent_gla


FORMS = list(forms())
IDS = [form[0] for form in FORMS]


def naive(erase, bounds=None):
    def run(q, k, v, g, *rest):
        beta, initial = rest if erase else (None, *rest)
        # States are at least float32, as the contract has them.
        return reference.matrix_state(q, k, v, g, beta, initial.to(q.dtype), bounds=bounds)

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, decay, erase, operation", FORMS, ids=IDS)
def test_results_and_gradients(name, decay, erase, operation, dtype):
    steps = 37
    made = list(tensors(decay, erase, 2, steps, 2, 4, 16, 8).values())
    reference.compare(operation, naive(erase), made, dtype, steps)


@pytest.mark.parametrize("name, decay, erase, operation", FORMS, ids=IDS)
def test_gradcheck(name, decay, erase, operation):
    leaves = [x.requires_grad_() for x in tensors(decay, erase, steps=5, key=3, value=2).values()]
    assert gradcheck(operation, leaves)


@pytest.mark.parametrize("bounds", [[0, 4, 4, 11], [0, 11], [0, 1, 2, 11]], ids=str)
@pytest.mark.parametrize("name, decay, erase, operation", FORMS, ids=IDS)
def test_sequences_one_behind_the_other(name, decay, erase, operation, bounds):
    made = list(tensors(decay, erase, 1, 11, sequences=len(bounds) - 1).values())
    for kind in (torch.int64, torch.int32):
        ends = torch.tensor(bounds, dtype=kind)
        reference.compare(
            lambda *x: operation(*x, cu_seqlens=ends), naive(erase, bounds), made, torch.float64, 11
        )


@pytest.mark.parametrize("name, decay, erase, operation", FORMS, ids=IDS)
def test_a_reset_is_a_new_sequence(name, decay, erase, operation):
    made = tensors(decay, erase, 1, 11, sequences=3)
    made["initial"][1:] = 0
    bounds, reset = torch.tensor([0, 4, 9, 11]), torch.zeros(1, 11, dtype=torch.bool)
    reset[0, [4, 9]] = True
    o, last = operation(*made.values(), cu_seqlens=bounds)
    made["initial"] = made["initial"][:1]
    o2, last2 = operation(*made.values(), reset=reset)
    assert torch.equal(o, o2) and torch.equal(last[2:], last2)
    leaves = [x.clone().requires_grad_() for x in tensors(decay, erase, 1, 5, key=3, value=2).values()]
    assert gradcheck(lambda *x: operation(*x, reset=reset[:, 3:8]), leaves)


def test_key_heads_serve_value_heads_in_a_row():
    made = list(tensors("head", heads=2, value_heads=6).values())
    o, _ = FORMS[0][3](*made)
    q, k, *rest = made
    repeated, _ = FORMS[0][3](q.repeat_interleave(3, 2), k.repeat_interleave(3, 2), *rest)
    torch.testing.assert_close(o, repeated, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_opcheck(dtype):
    operation = torch.ops.riverrun.matrix_state.default
    made = {name: x.to(dtype).requires_grad_() for name, x in tensors("head").items()}
    opcheck(operation, (*made.values(), None, None))
    q, k, v, *_ = made.values()
    opcheck(operation, (q, k, v, None, None, None, torch.rand(2, 11) < 0.3, None))
    one = [x.detach()[:1] for x in made.values()]
    bounds = torch.tensor([0, 5, 11])
    states = torch.randn(2, 2, 4, 3, dtype=dtype)
    opcheck(operation, (*one[:5], states, None, bounds))
    backward = torch.ops.riverrun.matrix_state_backward.default
    opcheck(backward, (*one[:5], states, None, bounds, torch.randn_like(one[2]), torch.randn_like(states)))


def test_mixed_dtypes_run_in_the_widest():
    made = tensors("head")
    q, k, v = (made[name].bfloat16() for name in "qkv")
    g, beta = made["g"].float(), made["beta"].bfloat16()
    initial = made["initial"].bfloat16()
    o, last = rt.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=initial, output_final_state=True)
    assert o.dtype == torch.bfloat16 and last.dtype == torch.float32
    wide = rt.chunk_gated_delta_rule(q.float(), k.float(), v.float(), g, beta.float(), initial_state=initial)[0]
    assert torch.equal(o, wide.bfloat16())


def test_normalised_keys():
    made = tensors("head")
    made["k"] = made["k"] * 3
    o, _ = rt.chunk_gated_delta_rule(*list(made.values())[:5], use_qk_l2norm_in_kernel=True)
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (made["q"], made["k"])]
    expected, _ = rt.chunk_gated_delta_rule(*unit, made["v"], made["g"], made["beta"])
    # 1e-6 is added to the square of the length.
    torch.testing.assert_close(o, expected, rtol=1e-4, atol=1e-4)


def test_states_with_values_first():
    made = list(tensors("row").values())
    o, last = rt.chunk_kda(*made[:5], None, made[5], True)
    o2, last2 = rt.chunk_kda(*made[:5], None, made[5].transpose(2, 3), True, state_v_first=True)
    assert torch.equal(o, o2) and torch.equal(last, last2.transpose(2, 3))


def test_gates_in_the_kernel():
    made = tensors("row")
    a_log, dt_bias = torch.randn(2, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    raw = torch.randn_like(made["g"])
    g = -torch.exp(a_log)[:, None] * torch.nn.functional.softplus(raw + dt_bias.view(2, 4))
    q, k, v, beta = (made[name] for name in ("q", "k", "v", "beta"))
    expected, _ = rt.chunk_kda(q, k, v, g, torch.sigmoid(beta))
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "A_log": a_log, "dt_bias": dt_bias}
    for operation in (rt.chunk_kda, rt.fused_recurrent_kda):
        torch.testing.assert_close(operation(q, k, v, raw, beta, **options)[0], expected, rtol=1e-12, atol=1e-12)
    g = -5.0 * torch.sigmoid(torch.exp(a_log)[:, None] * (raw + dt_bias.view(2, 4)))
    expected, _ = rt.chunk_kda(q, k, v, g, 2 * torch.sigmoid(beta))
    options |= {"lower_bound": -5.0, "allow_neg_eigval": True}
    torch.testing.assert_close(rt.chunk_kda(q, k, v, raw, beta, **options)[0], expected, rtol=1e-12, atol=1e-12)


def test_decays_of_heads_and_rows_add_up():
    made, rows = tensors("head"), tensors("row")["g"]
    q, k, v, g, beta, _ = made.values()
    both, _ = rt.fused_recurrent_gated_delta_rule(q, k, v, g, rows, beta=beta)
    expected, _ = rt.fused_recurrent_kda(q, k, v, g[..., None] + rows, beta)
    assert torch.equal(both, expected)
    none, _ = rt.fused_recurrent_gated_delta_rule(q, k, v)
    ones, _ = rt.chunk_gated_delta_rule(q, k, v, torch.zeros_like(g), torch.ones_like(beta))
    torch.testing.assert_close(none, ones, rtol=1e-12, atol=1e-12)


def test_empty_tensors():
    for shape in ((0, 4), (2, 0)):
        made = [x.requires_grad_() for x in tensors("head", batch=shape[0], steps=shape[1]).values()]
        o, last = FORMS[0][3](*made)
        assert o.shape == (*shape, 2, 3) and torch.equal(last, made[5])
        (o.sum() + last.sum()).backward()
        assert torch.equal(made[5].grad, torch.ones_like(made[5]))
    made = tensors("head", batch=1, steps=0, sequences=2)
    o, last = FORMS[0][3](*made.values(), cu_seqlens=torch.tensor([0, 0, 0]))
    assert torch.equal(last, made["initial"])


def test_what_is_refused():
    made = tensors("head")
    q, k, v, g, beta, initial = made.values()
    one = [x[:1] for x in (q, k, v, g, beta)]
    wide, small = torch.randn(1, 2, 1, 300).double(), [x[:1, :2, :1] for x in (g, beta)]
    run = rt.chunk_gated_delta_rule
    cases = [
        ("head_first", lambda: run(q, k, v, g, beta, head_first=True)),
        ("cp_context", lambda: run(q, k, v, g, beta, cp_context=object())),
        ("gv", lambda: rt.fused_recurrent_gated_delta_rule(q, k, v, g, gv=v)),
        ("reverse", lambda: rt.fused_recurrent_gla(q, k, v, reverse=True)),
        ("return_intermediate_states", lambda: rt.chunk_kda(q, k, v, g, beta, return_intermediate_states=True)),
        ("lower_bound", lambda: rt.chunk_kda(q, k, v, g, beta, safe_gate=True)),
        (r"g: expected 4 dimensions \[B, T, H, K\], found shape \[2, 11, 2\]", lambda: rt.chunk_kda(q, k, v, g, beta)),
        (r"k: expected shape \[2, 11, 2, 4\], found \[2, 10, 2, 4\]", lambda: run(q, k[:, :10], v, g, beta)),
        (r"initial_state: expected shape \[2, 2, 4, 3\], found \[1, 2, 4, 3\]", lambda: run(q, k, v, g, beta, None, initial[:1])),
        ("batch of 1", lambda: run(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 11]))),
        (r"end at 11, found \[0, 5\]", lambda: run(*one, cu_seqlens=torch.tensor([0, 5]))),
        (r"end at 11, found \[0, 7, 5, 11\]", lambda: run(*one, cu_seqlens=torch.tensor([0, 7, 5, 11]))),
        ("1 to 256 rows and columns", lambda: run(wide, wide, wide, *small)),
        ("multiple of the 2 heads", lambda: run(q, k, v[:, :, :1], g[:, :, :1], beta[:, :, :1])),
        ("found one on meta", lambda: run(q.to("meta"), k, v, g, beta)),
    ]
    for text, call in cases:
        with pytest.raises(ValueError, match=text):
            call()
