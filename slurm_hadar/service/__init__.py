"""The controller as a service: what systemd, log collectors, Prometheus, auditors and users are told of it."""
