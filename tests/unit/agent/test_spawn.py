import sys
from pathlib import Path

from msgspec.structs import replace

from agent.host_inventory.installed_engines import installed_engines
from agent.processes.ports import PortAllocator
from agent.processes.spawn import engine_argv, engine_env
from agent.state.process_records import ProcessKey
from schemas.hub import OWN_CACHE
from schemas.wire import ClaimOrder, ModelFetch
from support.standins.controller import start_order

KEY = ProcessKey("i-1", 2, 1)
CACHE = Path("/cache")


def test_only_known_placeholders_are_filled_in() -> None:
    argv = engine_argv(start_order("{python}", "--x={port}", '{"a": {port}}', "{other}", "${HOME}"), 81)
    assert argv[1:] == ["--x=81", '{"a": 81}', "{other}", "${HOME}"]
    assert argv[0].startswith("/")
    assert engine_argv(start_order("run", "{port}"), None) == ["run", "{port}"]


def test_the_simulated_engine_is_this_agents_by_its_earlier_name_too() -> None:
    own = [sys.executable, "-P", "-m", "agent.simulated_engine", "--port", "81"]
    assert engine_argv(start_order("{simulated_engine}", "--port", "{port}"), 81) == own
    earlier = ("{python}", "-m", "gpuward.agent.simulated_engine", "--port", "{port}")
    assert engine_argv(start_order(*earlier), 81) == own


def test_the_environment_holds_no_gpuward_secret(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "GPUWARD_JOIN_TOKEN": "t", "GPUWARD_API_KEY": "k", "CUDA_VISIBLE_DEVICES": "0"}
    env = engine_env(base, start_order("run", env={"A": "b"}), KEY, port=None, data_dir=tmp_path, cache_dir=CACHE)
    assert env == {
        "PATH": f"/bin:{Path(sys.executable).parent}",
        "A": "b",
        "PYTHONUNBUFFERED": "1",
        "HF_HOME": str(tmp_path / "cache" / "huggingface"),
        "CUDA_VISIBLE_DEVICES": "",
        "GPUWARD_AGENT_DIR": str(tmp_path),
        "GPUWARD_INSTANCE": "i-1",
        "GPUWARD_EPOCH": "2",
        "GPUWARD_RANK": "1",
    }


def test_engines_without_uuid_support_get_indexes(tmp_path: Path) -> None:
    claims = tuple(ClaimOrder(device=f"GPU-{name}", memory_mib=1, exclusive=False) for name in "ab")
    indexes = {"GPU-a": 3, "GPU-b": 0}

    def visible(*, by_index: bool, known: dict[str, int]) -> dict[str, str]:
        order = replace(start_order("run"), claims=claims, gpus_by_index=by_index)
        env = engine_env({}, order, KEY, port=None, data_dir=tmp_path, cache_dir=CACHE, gpu_index=known.get)
        return {name: value for name, value in env.items() if name.startswith("CUDA_")}

    assert visible(by_index=False, known=indexes) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    by_index = {"CUDA_VISIBLE_DEVICES": "3,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible(by_index=True, known=indexes) == by_index
    assert visible(by_index=True, known={"GPU-a": 3}) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}


def test_installed_engines_are_found_by_their_programs(tmp_path: Path) -> None:
    for name in ("llama-server", "vllm"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "sglang").touch(mode=0o644)  # not executable
    assert set(installed_engines({"PATH": str(tmp_path)})) - {"transformers"} == {"llama-cpp", "vllm"}


def test_servers_look_for_models_where_the_agent_fetches_them_to(tmp_path: Path) -> None:
    fetches: tuple[ModelFetch, ...] = (ModelFetch(repo="org/model"),)

    def found(base: dict[str, str], own: dict[str, str]) -> dict[str, str]:
        order = replace(start_order("run", env=own), fetches=fetches)
        env = engine_env(base, order, KEY, port=None, data_dir=tmp_path, cache_dir=CACHE)
        return {key: value for key, value in env.items() if key.startswith("HF_")}

    home = str(tmp_path / "cache" / "huggingface")
    assert found({}, {}) == {"HF_HOME": home, "HF_HUB_CACHE": str(CACHE)}
    assert found({"HF_HOME": "/hosts"}, {}) == {"HF_HOME": "/hosts", "HF_HUB_CACHE": str(CACHE)}
    for name in OWN_CACHE:
        assert found({}, {name: "/mine"}) == {"HF_HOME": home} | ({name: "/mine"} if name.startswith("HF_") else {})
    fetches = ()
    assert found({}, {}) == {"HF_HOME": home}, "a custom command fetches by itself, outside the agent's cache"


def test_two_agents_of_a_host_never_allocate_the_same_port() -> None:
    one, other = PortAllocator(), PortAllocator()
    try:
        port = one.allocate()
        assert not other.lock(port)
        assert len({other.allocate() for _ in range(50)} | {port}) == 51
        one.release(port)
        assert other.lock(port)
    finally:
        one.close()
        other.close()
