"""The models of manifests that views contain, by their names alone: a client that reads a view imports none of them."""

from typing import TYPE_CHECKING

from schemas.api.view import Manifest

__all__ = ["DeploymentSpec", "PolicySpec", "UtilizationPolicy"]

if TYPE_CHECKING:
    from schemas.manifest.deployment import DeploymentSpec
    from schemas.manifest.policy import PolicySpec, UtilizationPolicy
else:

    class DeploymentSpec(Manifest):
        """The spec of a deployment."""

        module = "schemas.manifest.deployment"

    class PolicySpec(Manifest):
        """The spec of a policy."""

        module = "schemas.manifest.policy"

    class UtilizationPolicy(Manifest):
        """An inline policy."""

        module = "schemas.manifest.policy"
