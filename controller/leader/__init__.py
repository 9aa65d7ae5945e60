"""Services of one term, which only the leader runs. Its lease is `controller.runtime.lease`."""
