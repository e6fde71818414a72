"""The dashboard: pages and JSON over the controller's journal, read-only. Needs the extra ``[web]``."""
