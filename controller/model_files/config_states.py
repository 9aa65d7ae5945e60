"""The states of a config's layers: sizes by the family of layers, as vLLM's MambaStateShapeCalculator gives them."""

from collections.abc import Mapping
from typing import Any

from controller.domain.model_facts import States
from controller.model_files.config_fields import ConfigScopes, is_count
from controller.model_files.layer_kinds import UnknownLayersError

_FLOAT32 = "float32"


def states_of(config: ConfigScopes, layers: int, model_type: str) -> States:
    """The states of so many layers.

    Raises:
        UnknownLayersError: the config does not give their size in a form that is known.
    """
    for read in (_kda, _gated_delta, _short_conv, _mamba2, _mamba, _lightning):
        found = read(config, layers, model_type)
        if found is not None:
            return found
    raise UnknownLayersError("the size of the state that its layers keep")


def _kda(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Kimi's delta attention; the recurrent state has 32 bits."""
    given = config.value("linear_attn_config")
    if not isinstance(given, dict):
        return None
    heads, size, kernel = (_in(given, name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if heads is None or size is None or kernel is None:
        return None
    kept = kernel - 1
    return States(layers, 3 * heads * size * kept, recurrent=heads * size * size, kernel=kept, recurrent_dtype=_FLOAT32)


def _gated_delta(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Gated delta nets: Qwen3-Next, Qwen3.5, Olmo hybrid."""
    key_heads, value_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key, value = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    kernel = config.count("linear_conv_kernel_dim")
    if key_heads is None or value_heads is None or key is None or value is None or kernel is None:
        return None
    conv = (2 * key_heads * key + value_heads * value) * (kernel - 1)
    return States(layers, conv, recurrent=value_heads * value * key, kernel=kernel - 1, recurrent_dtype=_dtype(config))


def _short_conv(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    """LFM2: a convolution alone."""
    kernel = config.count("conv_L_cache")
    if kernel is None:
        return None
    own = ("conv_dim", "hidden_size") if model_type == "lfm2" else ("hidden_size",)
    size = config.count(*own)
    return None if size is None else States(layers, size * (kernel - 1), kernel=kernel - 1)


def _mamba2(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    plain = ("num_heads",) if model_type == "mamba2" else ()  # elsewhere they are of attention
    heads = config.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", *plain)
    state, kernel = config.count("ssm_state_size", "mamba_d_state", "state_size"), _kernel(config)
    if heads is None or state is None or kernel is None:
        return None
    inner = _inner2(config, heads, model_type)
    if inner is None:
        return None
    kept, groups = kernel - 1, config.count("mamba_n_groups", "mamba_ngroups", "n_groups") or 0
    # Only of these vLLM does not keep the recurrent state in the model's own type (NemotronHForCausalLMConfig).
    dtype = _dtype(config) or (_FLOAT32 if model_type.startswith(("nemotron_h", "nemotronh")) else None)
    return States(layers, inner * kept, groups, 2 * state * kept, inner * state, kept, dtype)


def _inner2(config: ConfigScopes, heads: int, model_type: str) -> int | None:
    plain = ("head_dim",) if model_type == "mamba2" else ()
    size = config.count("mamba_head_dim", "mamba_d_head", "mamba_headdim", *plain, "hidden_size_per_head")
    if size is not None:
        return heads * size
    stated = config.count("mamba_d_ssm")
    return stated if stated is not None else _expanded(config)


def _mamba(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    state, kernel = config.count("mamba_d_state", "state_size", "ssm_state_size"), _kernel(config)
    inner = _expanded(config)
    if model_type in ("mamba", "falcon_mamba"):
        inner = config.count("intermediate_size", "d_inner") or inner
    if state is None or kernel is None or inner is None:
        return None
    return States(layers, inner * (kernel - 1), recurrent=inner * state, kernel=kernel - 1)


def _lightning(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Linear attention with a matrix for each head: MiniMax, Ling and Ring 2.5."""
    if config.value("attn_type_list") is None and config.count("layer_group_size") is None:
        return None
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    if heads is None or hidden is None:
        return None
    size = config.count("head_dim") or hidden // heads
    return States(layers, recurrent=heads * size * size)


def _kernel(config: ConfigScopes) -> int | None:
    return config.count("mamba_d_conv", "conv_kernel", "d_conv", "conv_kernel_size")


def _expanded(config: ConfigScopes) -> int | None:
    expand, hidden = config.count("mamba_expand", "expand"), config.count("hidden_size", "d_model")
    return None if expand is None or hidden is None else expand * hidden


def _dtype(config: ConfigScopes) -> str | None:
    return config.word("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def _in(given: Mapping[str, Any], name: str) -> int | None:
    return int(given[name]) if is_count(given.get(name)) else None
