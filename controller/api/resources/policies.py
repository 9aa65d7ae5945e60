"""Utilization policies: list, read, apply, delete."""

from typing import Final

from controller.api.manifest_routes import ManifestResource
from controller.store.policies.apply import apply_policy, delete_policy
from controller.store.views.policies import list_policies, policy_by_name
from schemas.api.envelopes import Page
from schemas.api.policies import PolicyView
from schemas.manifest.parse import parse_policy_spec
from schemas.manifest.policy import PolicySpec

ROUTES: Final = ManifestResource(
    path="/api/v1/policies",
    noun="utilization policy",
    plural="utilization policies",
    page=Page[PolicyView],
    view=PolicyView,
    spec=PolicySpec,
    parse=lambda body, name: parse_policy_spec(body, name=name),
    read_page=list_policies,
    read=policy_by_name,
    apply=apply_policy,
    delete=delete_policy,
).routes()
