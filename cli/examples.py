"""Two calls of each verb, which its `--help` shows. Pure."""

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = {
    "apply": ("gpuward apply -f chat.yaml --wait", "gpuward apply -f models/ --prune -l team=search"),
    "plan": ("gpuward plan -f chat.yaml", "gpuward plan -f models/ -o json"),
    "diff": ("gpuward diff -f chat.yaml", "gpuward diff -f models/ --prune -l team=search"),
    "run": ("gpuward run hf:Qwen/Qwen3-0.6B", 'gpuward run gguf:/models/tiny.gguf "Why is the sky blue?" --rm'),
    "wait": ("gpuward wait chat embed", "gpuward wait train --for succeeded --timeout 2h"),
    "scale": ("gpuward scale chat 4", "gpuward scale chat --min 0 --max 8"),
    "stop": ("gpuward stop chat", "gpuward stop chat embed"),
    "start": ("gpuward start chat", "gpuward start chat embed"),
    "wake": ("gpuward wake chat", "gpuward wake chat --for 8h"),
    "restart": ("gpuward restart chat", "gpuward restart chat --pull"),
    "rollout status": ("gpuward rollout status chat", "gpuward rollout status chat --no-watch"),
    "rollout pause": ("gpuward rollout pause chat", "gpuward rollout pause embed"),
    "rollout resume": ("gpuward rollout resume chat", "gpuward rollout resume embed"),
    "rollout undo": ("gpuward rollout undo chat", "gpuward rollout undo chat --to 3"),
    "rollout history": ("gpuward rollout history chat", "gpuward rollout history chat --diff 2 3"),
    "delete": ("gpuward delete chat --wait", "gpuward delete worker gpu-a1 --confirm-dead"),
    "get": ("gpuward get deployments -l team=search", "gpuward get gpu gpu-a1:0 -o wide"),
    "ps": ("gpuward ps", "gpuward ps chat --watch"),
    "pending": ("gpuward pending", "gpuward pending -o json"),
    "describe": ("gpuward describe chat", "gpuward describe gpu gpu-a1:0"),
    "models": ("gpuward models", "gpuward models chat -o wide"),
    "logs": ("gpuward logs chat --follow", "gpuward logs chat --previous --tail 50"),
    "events": ("gpuward events --for deployment/chat", "gpuward events --watch"),
    "top": ("gpuward top", "gpuward top --once --worker gpu-a1"),
    "usage": ("gpuward usage --since 30d", "gpuward usage --by key,endpoint -o csv"),
    "report idle": (
        "gpuward report idle --since 30d",
        "gpuward report idle --min-gpu-utilization 20 --time-window 30m",
    ),
    "join-token create": ("gpuward join-token create", "gpuward join-token create --uses 8 --expires 12h"),
    "join-token list": ("gpuward join-token list", "gpuward join-token list -o json"),
    "join-token revoke": (
        "gpuward join-token revoke 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11",
        'gpuward join-token revoke "$TOKEN_ID"',
    ),
    "label worker": (
        "gpuward label worker gpu-a1 gpuward.io/zone=a",
        "gpuward label worker gpu-a1 gpuward.io/zone-",
    ),
    "cordon": ("gpuward cordon gpu-a1", "gpuward cordon gpu-a1 --gpu 0"),
    "uncordon": ("gpuward uncordon gpu-a1 gpu-a2", "gpuward uncordon gpu-a1 --gpu gpu-a1:0"),
    "drain": ("gpuward drain gpu-a1 --wait", "gpuward drain gpu-a1 gpu-a2 --timeout 2h"),
    "defrag": ("gpuward defrag", "gpuward defrag --apply"),
    "cache list": ("gpuward cache list gpu-a1", "gpuward cache list gpu-a1 -o wide"),
    "cache prune": ("gpuward cache prune gpu-a1 --unused-for 30d", "gpuward cache prune gpu-a1 hf:Qwen/Qwen3-0.6B"),
    "context add": (
        "gpuward context add prod --url https://gpuward.example.com --use",
        "gpuward context add lab --url https://10.0.0.5:9340 --ca ca.pem < key.txt",
    ),
    "context use": ("gpuward context use prod", "gpuward context use --none"),
    "context list": ("gpuward context list", "gpuward context list -o json"),
    "context show": ("gpuward context show", "gpuward context show prod -o yaml"),
    "context delete": ("gpuward context delete lab", "gpuward context delete prod"),
    "key create": (
        "gpuward key create --role inference --name app --models 'chat,embed-*' --rpm 600",
        "gpuward key create --role viewer --expires 30d",
    ),
    "key update": (
        "gpuward key update 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11 --rpm 120",
        "gpuward key update 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11 --models none",
    ),
    "key list": ("gpuward key list", "gpuward key list -o wide"),
    "key rotate": (
        "gpuward key rotate 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11",
        "gpuward key rotate 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11 --overlap 7d",
    ),
    "key revoke": ("gpuward key revoke 5f0c1c52-7c0e-4a39-9a52-0f6f0f1d2b11", 'gpuward key revoke "$OLD_KEY_ID"'),
    "key reset": ("gpuward key reset", "gpuward key reset --data-dir /var/lib/gpuward"),
    "secret set": (
        'printf %s "$HF_TOKEN" | gpuward secret set hf',
        "gpuward secret set hf --for 'team-a-*' < token.txt",
    ),
    "secret scope": ("gpuward secret scope hf --for 'chat-*'", "gpuward secret scope hf --for all"),
    "secret list": ("gpuward secret list", "gpuward secret list -o name"),
    "secret rotate-key": ("gpuward secret rotate-key", "gpuward --context prod secret rotate-key"),
    "secret delete": ("gpuward secret delete hf", "gpuward secret delete old-token"),
    "secret proxy-key": (
        "gpuward secret proxy-key > proxy.key",
        "gpuward secret proxy-key --key-file /etc/gpuward/secrets.key",
    ),
    "ca init": ("gpuward ca init", "gpuward ca init --name gpuward.example.com"),
    "ca show": ("gpuward ca show", "gpuward ca show --data-dir /var/lib/gpuward"),
    "ca issue": (
        "gpuward ca issue gateway.pem --name gpuward.example.com",
        "gpuward ca issue edge.pem --name edge-1 --name 10.0.0.7",
    ),
    "audit-log": ("gpuward audit-log --since 1d", "gpuward audit-log --for deployments/chat -o jsonl"),
    "audit-log verify": ("gpuward audit-log verify", "gpuward audit-log verify -o json"),
    "up": ("gpuward up", "gpuward up --agents 2 --port 9340"),
    "controller": ("gpuward controller", "gpuward controller --port 9340 --gateway-processes 4"),
    "gateway": (
        "gpuward gateway --controller http://10.0.0.5:9340",
        "gpuward gateway --controller http://10.0.0.5:9340 --processes 4",
    ),
    "gateway list": ("gpuward gateway list", "gpuward gateway list -o json"),
    "gateway forget": ("gpuward gateway forget edge-1:9340", "gpuward gateway forget edge-1:9340/2"),
    "agent": (
        "gpuward agent --controller http://10.0.0.5:9340 --join-token-file token.txt",
        "gpuward agent --controller http://10.0.0.5:9340 --name gpu-a1 --label zone=a",
    ),
    "doctor": ("gpuward doctor", "gpuward doctor --controller http://10.0.0.5:9340"),
    "backup": ("gpuward backup gpuward.backup", "gpuward backup gpuward.backup --overwrite"),
    "restore": ("gpuward restore gpuward.backup", "gpuward restore gpuward.backup --replace --revoke-keys"),
    "assets": ("gpuward assets /etc/gpuward/assets", "gpuward assets . --force"),
    "audit": ("gpuward audit", "gpuward audit --repair --dry-run"),
    "completion": ("gpuward completion bash > gpuward.bash", "gpuward completion zsh"),
    "version": ("gpuward version", "gpuward --version"),
}


def examples_of(words: str) -> tuple[str, ...]:
    """The examples of a verb, such as `key list`; of a group of verbs the first of each of its first two verbs."""
    if words in EXAMPLES:
        return EXAMPLES[words]
    return tuple(examples[0] for name, examples in EXAMPLES.items() if name.startswith(f"{words} "))[:2]
