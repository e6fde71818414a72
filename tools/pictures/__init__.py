"""The pictures of docs/dashboard.md: ``python -m tools.pictures`` (Chromium and its driver must be installed)."""
