"""Recurrences with matrix states as PyTorch operations, with the signatures of flash-linear-attention.

    S' = exp(g_t) * S_{t-1}        u_t = β_t (v_t - S'ᵀ k_t)        S_t = S' + k_t u_tᵀ        o_t = scale * S_tᵀ q_t

`chunk_` and `fused_recurrent_` are two names of one kernel here: it is exact in every step, and has gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from riverrun import _kernels, _problem
from riverrun.torch import _tensors
from riverrun.torch._cuda import under_autocast
from riverrun.torch._transforms import in_float32, with_transforms


def _matrix_state_now(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    bounds: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return _kernels.matrix_state(_tensors, q, k, v, g, beta, initial, reset, bounds)


def _results(q, k, v, g, beta, initial, reset, bounds):
    sizes, _, sequences, dtype = _problem.matrix_state(_tensors, q, k, v, g, beta, initial, reset, bounds)
    return (sequences, *sizes[3:]), getattr(torch, _problem.ARITHMETIC[dtype])


_matrix_state = torch.library.custom_op("riverrun::matrix_state", mutates_args=())(_matrix_state_now)


@_matrix_state.register_fake
def _(q, k, v, g, beta, initial, reset, bounds):
    state, arithmetic = _results(q, k, v, g, beta, initial, reset, bounds)
    return v.new_empty(v.shape), v.new_empty(state, dtype=arithmetic)


def _matrix_state_backward_now(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial: Tensor | None,
    reset: Tensor | None,
    bounds: Tensor | None,
    d_o: Tensor,
    d_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    arrays = (q, k, v, g, beta, initial, reset, bounds)
    gradients = _kernels.matrix_state_backward(_tensors, *arrays, d_o, d_last)
    return tuple(q.new_empty(0) if d is None else d for d in gradients)


_matrix_state_backward = torch.library.custom_op("riverrun::matrix_state_backward", mutates_args=())(_matrix_state_backward_now)


@_matrix_state_backward.register_fake
def _(q, k, v, g, beta, initial, reset, bounds, d_o, d_last):
    state, arithmetic = _results(q, k, v, g, beta, initial, reset, bounds)
    of = [q.new_empty(0 if x is None else x.shape) for x in (q, k, v, g, beta)]
    return (*of, q.new_empty(state, dtype=arithmetic))


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_o, d_last):
    arrays = ctx.saved_tensors
    gradients = _gradients(*arrays, d_o, d_last)
    return (*(None if x is None else d for x, d in zip(arrays, gradients)), None, None)


_call = with_transforms(_matrix_state, _matrix_state_now, _setup, _backward)
_gradients = with_transforms(_matrix_state_backward, _matrix_state_backward_now)
in_float32(_matrix_state)


def _unit(x):
    """Vectors of length 1, as flash-linear-attention makes them."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _each_sequence(arrays, initial, reset, bounds):
    """A call for each of the sequences that follow each other in a batch of 1."""
    _problem.matrix_state(_tensors, *arrays, initial, reset, bounds)
    bounds, rows = bounds.tolist(), arrays[0].shape[1]
    if bounds[0] != 0 or bounds[-1] != rows or bounds != sorted(bounds):
        raise ValueError(
            f"cu_seqlens: expected sequences that begin at 0, follow each other and end at {rows}, found {bounds}"
        )
    results = []
    for index, (start, end) in enumerate(zip(bounds, bounds[1:])):
        part = [None if x is None else x[:, start:end] for x in (*arrays, reset)]
        state = None if initial is None else initial[index : index + 1]
        results.append(_call(*part[:5], state, part[5], None))
    if not results:
        v = arrays[2]
        heads, key, value = v.shape[2], arrays[0].shape[3], v.shape[3]
        return torch.empty_like(v), v.new_empty((0, heads, key, value), dtype=torch.float32)
    return tuple(torch.cat(each, dim) for each, dim in zip(zip(*results), (1, 0)))


def _refuse(name, options):
    for option, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: the option {option} is not supported, found {value!r}")


def _run(
    q,
    k,
    v,
    g,
    beta,
    scale,
    initial_state,
    output_final_state,
    cu_seqlens,
    reset,
    use_qk_l2norm_in_kernel=False,
    state_v_first=False,
):
    _tensors.expect_place(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state, cu_seqlens=cu_seqlens, reset=reset)
    _problem.expect_dims("q", q, 4, "[B, T, H, K]")
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    dtype = v.dtype
    # Decays in float32 beside keys of 16 bits are common. On the CPU the widest type of all keeps them; on a GPU they take the
    # type of the keys, in which tensor cores run.
    q, k, v, g, beta = under_autocast(q, k, v, g, beta)
    wide = v.dtype
    for x in (q, k) if v.is_cuda else (q, k, g, beta):
        if x is not None:
            wide = torch.promote_types(wide, x.dtype)
    q, k, v, g, beta = (None if x is None else x.to(wide) for x in (q, k, v, g, beta))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if initial_state is not None:
        initial_state = initial_state.to(torch.float64 if wide == torch.float64 else torch.float32)
        initial_state = initial_state.transpose(-1, -2) if state_v_first else initial_state
    arrays = (q * scale, k, v, g, beta)
    if cu_seqlens is not None and q.is_cuda:
        o, last = _each_sequence(arrays, initial_state, reset, cu_seqlens)
    else:
        cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(torch.int64)
        o, last = _call(*arrays, initial_state, reset, cu_seqlens)
    last = last.transpose(-1, -2) if state_v_first else last
    return o.to(dtype), (last if output_final_state else None)


def _expect_decay(name, g, dims):
    sizes = "[B, T, H]" if dims == 3 else "[B, T, H, K]"
    if g is not None:
        _problem.expect_dims(name, g, dims, sizes)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    state_v_first: bool = False,
    cu_seqlens_cpu: Tensor | None = None,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet.

    Args:
        q, k: `[B, T, H, K]`, K from 1 to 256.
        v: `[B, T, HV, V]`, V from 1 to 256; HV is a multiple of H, and each head of q and k serves HV / H heads in a row.
        g: `[B, T, HV]`, the logarithm of the decay, at most 0.
        beta: `[B, T, HV]`.
        scale: of `q`; `1 / sqrt(K)` when `None`.
        initial_state: `[N, HV, K, V]`, for N sequences; zero when `None`.
        output_final_state: whether to return the last states.
        use_qk_l2norm_in_kernel: whether to divide q and k by their lengths first.
        cu_seqlens: `[N + 1]`, integers: where each of N sequences begins in a batch of 1, and the end.
        head_first: only `False`.
        state_v_first: whether states are `[N, HV, V, K]`.
        cu_seqlens_cpu: not needed on the CPU, and not read.
        reset: `[B, T]`, bool; where it is set, the state before the step counts as 0, and no gradient passes through it.

    Returns:
        `o`, `[B, T, HV, V]` in the dtype of `v`, and the last states, float32 (float64 for float64), or `None`.

    Arithmetic is in float32 (float64 for float64). Mixed dtypes run in the widest of them. Other options of
    flash-linear-attention are refused by name.

    Raises:
        ValueError: shapes, devices or options that do not fit.

    Source: Yang et al., *Gated Delta Networks* (2024), section 3.
    """
    _refuse("chunk_gated_delta_rule", {"head_first": head_first, **options})
    _expect_decay("g", g, 3)
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reset,
        use_qk_l2norm_in_kernel,
        state_v_first,
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Gated DeltaNet, with the decay of a head, of a row, both or none.

    Args:
        g: `[B, T, HV]`; gk: `[B, T, HV, K]`: logarithms of decays, which add up.
        gv: only `None`.
        beta: `[B, T, HV]`, one when `None`.

    The others are those of `chunk_gated_delta_rule`. It has gradients here.
    """
    _refuse("fused_recurrent_gated_delta_rule", {"gv": gv, **options})
    _expect_decay("g", g, 3)
    _expect_decay("gk", gk, 4)
    if beta is None:
        beta = torch.ones_like(v[..., 0])
    if gk is not None:
        g = gk if g is None else g.unsqueeze(3) + gk
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reset,
        use_qk_l2norm_in_kernel,
        state_v_first,
    )


def _kda_decay(g, use_gate_in_kernel, a_log, dt_bias, lower_bound):
    """The logarithm of KDA's decay."""
    _expect_decay("g", g, 4)
    if not use_gate_in_kernel:
        return g
    heads, key = g.shape[2:]
    wide = g if g.dtype == torch.float64 else g.float()
    if dt_bias is not None:
        wide = wide + dt_bias.reshape(heads, key)
    rate = None if a_log is None else torch.exp(a_log.reshape(heads, 1))
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(wide if rate is None else rate * wide)
    if rate is None:
        raise ValueError("A_log: expected a tensor where use_gate_in_kernel has no lower_bound, found None")
    return -rate * torch.nn.functional.softplus(wide)


def _kda_beta(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval):
    if not use_beta_sigmoid_in_kernel:
        return beta
    return torch.sigmoid(beta) * (2.0 if allow_neg_eigval else 1.0)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context=None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention: the delta rule with a decay of each row.

    Args:
        g: `[B, T, HV, K]`, the logarithm of the decay, at most 0; with `use_gate_in_kernel` what it is computed from,
            `-exp(A_log) * softplus(g + dt_bias)`, or `lower_bound * sigmoid(exp(A_log) * (g + dt_bias))` with a `lower_bound`.
        beta: `[B, T, HV]`; with `use_beta_sigmoid_in_kernel` its sigmoid counts, twice that with `allow_neg_eigval`.
        A_log: `[HV]`; dt_bias: `[HV * K]`.
        safe_gate, disable_recompute: they choose among kernels elsewhere, and change nothing here.

    The others are those of `chunk_gated_delta_rule`; `return_intermediate_states`, `cp_context`, `use_graph` and
    `max_num_seqs` are refused by name.

    Source: *Kimi Linear* (2025), section 3.
    """
    refused = {
        "return_intermediate_states": return_intermediate_states,
        "cp_context": cp_context,
        "use_graph": use_graph,
        "max_num_seqs": max_num_seqs,
    }
    _refuse("chunk_kda", {**refused, **options})
    if safe_gate and lower_bound is None:
        raise ValueError("lower_bound: expected a number with safe_gate, found None")
    g = _kda_decay(g, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    beta = _kda_beta(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reset,
        use_qk_l2norm_in_kernel,
        state_v_first,
    )


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Kimi Delta Attention; the arguments are those of `chunk_kda`. It has gradients here."""
    _refuse("fused_recurrent_kda", options)
    g = _kda_decay(g, use_gate_in_kernel, A_log, dt_bias, lower_bound)
    beta = _kda_beta(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        cu_seqlens,
        reset,
        use_qk_l2norm_in_kernel,
        state_v_first,
    )


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    state_v_first: bool = False,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention: `S_t = exp(g_t) * S_{t-1} + k_t v_tᵀ`, `o_t = scale * S_tᵀ q_t`.

    Args:
        q, k, g: `[B, T, H, K]`; v: `[B, T, H, V]`.

    The others are those of `chunk_gated_delta_rule`.

    Source: Yang et al., *Gated Linear Attention* (2023), section 4.
    """
    _refuse("chunk_gla", {"head_first": head_first, **options})
    _expect_decay("g", g, 4)
    return _run(
        q, k, v, g, None, scale, initial_state, output_final_state, cu_seqlens, reset, state_v_first=state_v_first
    )


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    reset: Tensor | None = None,
    **options,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention; `gk` is the `g` of `chunk_gla`, none when `None`. `gv` and `reverse` are refused."""
    _refuse("fused_recurrent_gla", {"gv": gv, "reverse": reverse, **options})
    _expect_decay("gk", gk, 4)
    return _run(
        q, k, v, gk, None, scale, initial_state, output_final_state, cu_seqlens, reset, state_v_first=state_v_first
    )
