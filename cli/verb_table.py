"""The verbs in the order of `--help`: where each one is, and its help in short. Each is imported when it is used."""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """A verb.

    Attributes:
        name: the word after `gpuward`.
        module: has it in its `app`.
        help: the first sentence of its help.
    """

    name: str
    module: str
    help: str


VERBS: Final = (
    Verb("up", "cli.up.verb", "Run a database, a controller and agents on this host."),
    Verb("controller", "cli.local.daemons", "Run a controller and its gateway."),
    Verb("agent", "cli.local.daemons", "Run an agent on this host."),
    Verb(
        "gateway",
        "cli.local.daemons",
        "Run a gateway: it answers requests to models, and passes all else on to a controller.",
    ),
    Verb("apply", "cli.verbs.apply", "Create or update deployments and policies from manifests: all of them, or none."),
    Verb("wait", "cli.verbs.wait", "Wait until deployments run, succeed, are stopped or are gone."),
    Verb("run", "cli.verbs.run", "Deploy a model, wait until it runs, and chat with it."),
    Verb("diff", "cli.verbs.diff", "Show field by field what `apply` would change."),
    Verb("plan", "cli.verbs.plan", "Show what `apply` would do: changes, placements and policies."),
    Verb(
        "scale",
        "cli.verbs.deployments",
        "Set the number of replicas of a deployment, or the bounds between which it follows the requests.",
    ),
    Verb("stop", "cli.verbs.deployments", "Stop deployments."),
    Verb("wake", "cli.verbs.deployments", "Wake a sleeping deployment, and keep it awake for a time."),
    Verb(
        "start", "cli.verbs.deployments", "Start stopped deployments, and run ended tasks and failed instances again."
    ),
    Verb(
        "restart",
        "cli.verbs.deployments",
        "Restart the instances of a deployment, as many at a time as its `update` allows.",
    ),
    Verb("delete", "cli.verbs.delete", "Delete deployments, policies or workers."),
    Verb("rollout", "cli.verbs.rollout", "Manage the rollout of a deployment's newest revision."),
    Verb("defrag", "cli.verbs.defrag", "Relocate running instances so that pending ones fit."),
    Verb("get", "cli.verbs.get", "List the objects of a kind, or some of them."),
    Verb("ps", "cli.verbs.get", "List instances."),
    Verb("pending", "cli.verbs.pending", "List pending instances in the order in which they are placed."),
    Verb("describe", "cli.verbs.describe", "Show an object in detail, with its latest events."),
    Verb("top", "cli.verbs.top", "Show workers and GPUs live."),
    Verb("report", "cli.verbs.report", "Report how GPUs were used."),
    Verb("usage", "cli.verbs.report", "Report requests and tokens by key and model."),
    Verb("logs", "cli.verbs.logs", "Print the logs of engines."),
    Verb("events", "cli.verbs.events", "List events, oldest first."),
    Verb("label", "cli.verbs.label", "State what a worker is, whatever its host says."),
    Verb("cordon", "cli.verbs.workers", "Place no new instances on workers, or on one GPU of one."),
    Verb("uncordon", "cli.verbs.workers", "End the cordon or drain of workers, or the cordon of one GPU."),
    Verb("drain", "cli.verbs.workers", "Cordon workers and move their instances to others, replacements first."),
    Verb("cache", "cli.verbs.cache", "Models of the hub that workers have fetched: list, prune."),
    Verb("context", "cli.verbs.context", "Manage the controllers that this user calls."),
    Verb("ca", "cli.local.ca", "Manage a private certificate authority for TLS."),
    Verb("join-token", "cli.verbs.join_token", "Manage the tokens with which agents join."),
    Verb("key", "cli.verbs.key", "Manage API keys."),
    Verb("secret", "cli.verbs.secret", "Manage secrets for `env: {NAME: {secret: ...}}` in manifests."),
    Verb("audit", "cli.verbs.audit", "Check the invariants of the ledger."),
    Verb(
        "backup",
        "cli.local.backup",
        "Write the controller's whole state to a file, while everything runs or while it is stopped.",
    ),
    Verb("restore", "cli.local.backup", "Put a backup in the place of the controller's state."),
    Verb(
        "audit-log",
        "cli.verbs.audit_log",
        "List changes, and reads of secrets and logs: by which key, from where, and with which outcome.",
    ),
    Verb("doctor", "cli.local.doctor", "Examine this host, and say what to do."),
    Verb("completion", "cli.verbs.completion", "Print the script with which a shell completes verbs and live names."),
    Verb("version", "cli.verbs.version", "Print the version of this program."),
)
