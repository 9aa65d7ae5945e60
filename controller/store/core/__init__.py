"""What every part of the store uses: connections, migrations, locks, events, notifications, errors."""
