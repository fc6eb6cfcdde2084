"""Models of the package `transformers` on the kernels here."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings

from riverrun.torch import _matrix_state

#: What a modelling module calls its functions, and the ones of the same meaning here.
_FUNCTIONS = {
    "chunk_gated_delta_rule": _matrix_state.chunk_gated_delta_rule,
    "torch_chunk_gated_delta_rule": _matrix_state.chunk_gated_delta_rule,
    "fused_recurrent_gated_delta_rule": _matrix_state.fused_recurrent_gated_delta_rule,
    "torch_recurrent_gated_delta_rule": _matrix_state.fused_recurrent_gated_delta_rule,
    "chunk_kda": _matrix_state.chunk_kda,
    "fused_recurrent_kda": _matrix_state.fused_recurrent_kda,
}

#: Marks what stands in the place of a function.
_MARK = "_riverrun"


def _in_place_of(function):
    """The function, without the arguments that a caller passes to everything, such as those of attention."""
    known = {
        name for name, each in inspect.signature(function).parameters.items() if each.kind is not each.VAR_KEYWORD
    }

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **{name: value for name, value in kwargs.items() if name in known})

    setattr(call, _MARK, True)
    return call


def _decorator(original):
    """`transformers`' own decorator of such functions, for modules that are imported later."""

    def decorate(name, *args, **kwargs):
        if name in _FUNCTIONS:
            return lambda _: _in_place_of(_FUNCTIONS[name])
        return original(name, *args, **kwargs)

    setattr(decorate, _MARK, True)
    return decorate


def use_in_transformers() -> list[str]:
    """Lets the models of `transformers` compute their gated delta rules here, on CPUs and NVIDIA GPUs.

    Models with Gated DeltaNet, such as Qwen3-Next, Qwen3.5 and OLMo-Hybrid, otherwise run flash-linear-attention where it is
    installed, else PyTorch's operations step by step. It holds for modules that are imported, and for those imported later; models
    that exist then too.

    Returns:
        The names of the imported modules that it changed.

    Raises:
        ImportError: `transformers` is not installed.
    """
    import transformers.integrations as integrations
    from transformers.integrations import hub_kernels

    name = "use_kernel_func_from_hub_with_fallback"
    original = getattr(hub_kernels, name, None)
    if original is None:
        warnings.warn(
            "riverrun: this version of transformers chooses kernels as it imports a model: import the model's module first",
            RuntimeWarning,
            stacklevel=2,
        )
    elif not getattr(original, _MARK, False):
        decorate = _decorator(original)
        for module in (hub_kernels, integrations):
            setattr(module, name, decorate)
    changed = []
    for path, module in list(sys.modules.items()):
        if not path.startswith("transformers.models.") or ".modeling_" not in path:
            continue
        for function, ours in _FUNCTIONS.items():
            found = vars(module).get(function, module)
            # Without a kernel some versions keep `None` under the name.
            if found is not module and not getattr(found, _MARK, False):
                setattr(module, function, _in_place_of(ours))
                if path not in changed:
                    changed.append(path)
    return changed
