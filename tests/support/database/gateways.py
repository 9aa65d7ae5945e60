"""Gateways that report, for tests of what waits for them."""

import uuid
from pathlib import Path

from controller.live.demand import DemandReports
from controller.live.proxy_keys import ProxyKeys
from controller.store.access.proxy_secrets import PURPOSE
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database
from controller.store.scaling.gateways import report_demand


async def of_the_version_before(db: Database, name: str = "old:8420") -> uuid.UUID:
    """One that reports its demand and no keys; returns its id."""
    id_ = uuid.uuid4()
    async with db.connection() as connection:
        await report_demand(connection, id_, name, 1, {})
    return id_


async def with_keys(db: Database, folder: Path, keys: SecretKeys, name: str = "new:8420") -> DemandReports:
    """One that has these keys in a file, and has reported for long."""
    file = folder / f"{name.partition(':')[0]}.key"
    if texts := keys.branch(PURPOSE).texts():
        file.write_text("\n".join(texts))
    reports = DemandReports(db, name, ProxyKeys(file))
    await reports.report({})
    await long_since(db)
    return reports


async def long_since(db: Database) -> None:
    """All gateways have reported for a minute."""
    async with db.transaction() as connection:
        await connection.execute("update gateway_proxy_keys set since = since - interval '1 min'")
