"""What runs inside the user's Python: this directory goes in front of its PYTHONPATH. Standard library only."""

from pathlib import Path

INJECT = Path(__file__).resolve().parent
