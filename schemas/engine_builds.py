"""What an agent says of an installed engine's build, among the names of engines that it reports."""

from typing import Final

# llama-server was built without a GPU's library, or finds none of the host's GPUs.
LLAMA_CPP_ON_CPU: Final = "llama-cpp:no-gpu"
# llama-server is older than --cache-ram, and so than the cache of prompts that the flag bounds.
LLAMA_CPP_WITHOUT_CACHE_RAM: Final = "llama-cpp:no-cache-ram"
